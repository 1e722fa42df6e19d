"""Record `rwlock demo` as demo.svg: `python -m docs.pictures.record_demo`.

The picture shows the screen after each event of the demo, and at its end.
"""

from __future__ import annotations

import re
import sys

from docs.pictures.svg import FOLDER
from docs.pictures.terminal import Screen, draw, recording, screen

COLUMNS, LINES = 92, 60
WORDS = ("demo", *sys.argv[1:])
TITLE = "rwlock demo in a terminal: locks survive a stopped and a killed holder"

_EVENT = re.compile(r" *\d+\.\d s  ")


def frames() -> list[Screen]:
    """Return the screen before the first event, after each event, and at the end."""
    found: list[Screen] = []
    events, due = -1, 0
    last = screen("")
    command = [sys.executable, "-m", "aiorwlock_remote", *WORDS]
    shown = " ".join(("rwlock", *WORDS))
    with recording(command, shown, COLUMNS, LINES) as demo:
        for written in demo.written():
            now = screen(written)
            texts = ("".join(character for character, _ in line) for line in now)
            count = sum(bool(_EVENT.match(text)) for text in texts)
            if count > events:
                # The table is drawn anew only after the line about an event: the frame
                # is due a little later, or just before the next event.
                found += [last] if due else []
                events, due = count, 3
            elif due:
                due -= 1
                found += [] if due else [now]
            last = now
    if demo.process.returncode:
        sys.exit("the demo failed: record it on a machine that does nothing else")
    return [*found, last]


if __name__ == "__main__":
    picture = "\n".join(draw(frames(), TITLE, COLUMNS)) + "\n"
    (FOLDER.parent / "demo.svg").write_text(picture, encoding="utf-8")
