"""Record `rwlock demo` as the picture docs/demo.svg: `python docs/record_demo.py`.

The demo runs in a terminal of its own. The picture shows its screen after each event
and at the end, one after the other; where SVG is not animated, the end alone. It needs
fonts that every browser has, and brings its own background.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

COLUMNS, LINES = 92, 40
CELL_WIDTH, LINE_HEIGHT, MARGIN, TITLE_HEIGHT = 8.4, 19, 16, 34
COMMAND = ("rwlock", "demo", *sys.argv[1:])
PROMPT = f"\x1b[2m$\x1b[0m \x1b[1m{' '.join(COMMAND)}\x1b[0m\r\n"
COLORS = {"31": "#ff7b72", "32": "#3fb950"}
"""Colours of the SGR codes that the demo uses: red and green."""
FOREGROUND, BACKGROUND, BORDER = "#e6edf3", "#0d1117", "#3d444d"

Style = frozenset[str]
Cell = tuple[str, Style]

FRAME_SECONDS, END_SECONDS = 1.8, 9.0
"""Seconds for which the picture shows the screen after an event, and at the end."""

_EVENT = re.compile(r" *\d+\.\d s  ")
_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def record() -> Iterator[str]:
    """Run the demo in a terminal; yield all that it has written so far, as it grows."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "aiorwlock_remote", *COMMAND[1:]]
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as demo:
        os.close(slave)
        written = b""
        # Linux reports the end of a terminal as an error.
        try:
            while data := os.read(master, 1 << 16):
                written += data
                yield PROMPT + written.decode(errors="ignore")
        except OSError:
            pass
    if demo.returncode:
        sys.exit("the demo failed: record it on a machine that does nothing else")


def frames() -> list[list[list[Cell]]]:
    """Return the screen before the first event, after each event, and at the end."""
    found: list[list[list[Cell]]] = []
    events, due = -1, 0
    last = screen(PROMPT)
    for written in record():
        now = screen(written)
        texts = ("".join(character for character, _ in line) for line in now)
        count = sum(bool(_EVENT.match(text)) for text in texts)
        if count > events:
            # The table is drawn anew only after the line about an event: the frame is
            # due a little later, or just before the next event.
            found += [last] if due else []
            events, due = count, 3
        elif due:
            due -= 1
            found += [] if due else [now]
        last = now
    return [*found, last]


def screen(written: str) -> list[list[Cell]]:
    """Return the lines of the terminal after all that was written to it."""
    lines: list[list[Cell]] = [[]]
    row = column = 0
    style: Style = frozenset()
    for code, letter, control, text in _TOKEN.findall(written):
        if control == "\n":
            row += 1
        elif control == "\r":
            column = 0
        elif letter == "A":
            row = max(0, row - int(code or 1))
        elif letter == "K":
            lines[row] = []
        elif letter == "m":
            codes = [part for part in code.split(";") if part not in {"", "0"}]
            style = frozenset(codes) if not code or code[0] == "0" else style | {*codes}
        lines += [[] for _ in range(row + 1 - len(lines))]
        for character in text:
            line = lines[row]
            line += [(" ", frozenset())] * (column + 1 - len(line))
            line[column] = character, style
            column += 1
    while lines and not any(character.strip() for character, _ in lines[-1]):
        lines.pop()
    return lines


def draw(frames: list[list[list[Cell]]]) -> Iterator[str]:
    """Yield the lines of the SVG."""
    width = round(2 * MARGIN + COLUMNS * CELL_WIDTH)
    height = TITLE_HEIGHT + 2 * MARGIN + len(frames[-1]) * LINE_HEIGHT
    title = "rwlock demo in a terminal: locks survive a stopped and a killed holder"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-label="{title}">'
    )
    yield f"<title>{title}</title>"
    yield (
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        f"fill:{FOREGROUND};white-space:pre}}.frame{{visibility:hidden}}"
        ".frame:last-of-type{visibility:visible}"
    )
    yield "@media (prefers-reduced-motion:no-preference){"
    yield from _animation(len(frames))
    yield "}</style>"
    yield (
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
        f' fill="{BACKGROUND}" stroke="{BORDER}"/>'
    )
    for number, color in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{22 + 20 * number}" cy="20" r="6" fill="{color}"/>'
    for number, lines in enumerate(frames):
        yield f'<g class="frame" id="f{number}">'
        for row, line in enumerate(lines):
            yield from _line(line, TITLE_HEIGHT + MARGIN + row * LINE_HEIGHT)
        yield "</g>"
    yield "</svg>"


def _animation(count: int) -> Iterator[str]:
    """Yield the styles that show one frame after the other, the last one longest."""
    total = (count - 1) * FRAME_SECONDS + END_SECONDS
    for number in range(count):
        begin = 100 * number * FRAME_SECONDS / total
        end = 100 * (number + 1) * FRAME_SECONDS / total if number < count - 1 else 100
        yield (
            f"@keyframes k{number}{{0%{{visibility:hidden}}"
            f"{begin:.2f}%{{visibility:visible}}{end:.2f}%{{visibility:hidden}}}}"
            f"#f{number}{{animation:k{number} {total:.1f}s step-end infinite}}"
        )


def _line(line: list[Cell], y: int) -> Iterator[str]:
    column = 0
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in cells)
        # Place and length are given for each group of words: columns align in any font.
        for found in re.finditer(r"\S+(?: \S+)*", text):
            start, length = column + found.start(), len(found[0])
            yield (
                f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" y="{y}"'
                f' textLength="{length * CELL_WIDTH:.1f}"'
                f' lengthAdjust="spacingAndGlyphs"{_attributes(style)}>'
                f"{escape(found[0])}</text>"
            )
        column += len(text)


def _attributes(style: Style) -> str:
    color = next((COLORS[code] for code in style if code in COLORS), None)
    return (
        (f' style="fill:{color}"' if color else "")
        + (' font-weight="700"' if "1" in style else "")
        + (' opacity=".6"' if "2" in style else "")
    )


if __name__ == "__main__":
    picture = "\n".join(draw(frames())) + "\n"
    target = Path(__file__).with_name("demo.svg")
    target.write_text(picture, encoding="utf-8")
    print(f"{target}: {len(picture.encode())} bytes")  # noqa: T201
