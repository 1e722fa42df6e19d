"""Record `rwlock watch` as watch.svg: `python -m docs.pictures.record_watch`.

Programs hold and want locks in a SQLite file of their own, while the command watches.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator

from aiorwlock_remote import Locks, connect
from docs.pictures.svg import FOLDER
from docs.pictures.terminal import Screen, draw, recording, screen

COLUMNS, LINES = 64, 16
TITLE = "rwlock watch in a terminal: locks are held, waited for, handed over and lost"
FIRST = 1.2
"""Seconds after which the first program begins."""

HOME = "\x1b[H"
"""Moves the cursor to the upper left corner."""


async def hold(
    locks: Locks, what: tuple[str, int], at: float, seconds: float, reason: str
) -> None:
    """Ask for the lock after ``at`` seconds, and hold it for so many."""
    await asyncio.sleep(FIRST + at)
    async with locks.mutex(*what).acquire(reason=reason):
        await asyncio.sleep(seconds)


async def programs(url: str) -> None:
    """Act as three programs; each connects by itself, as it would elsewhere."""
    async with connect(url) as web, connect(url) as cron, connect(url) as shop:
        async with asyncio.TaskGroup() as group:
            group.create_task(hold(cron, ("report", 7), 0, 4.5, "nightly report"))
            group.create_task(hold(web, ("order", 42), 0.9, 1.9, "refund"))
            group.create_task(hold(shop, ("order", 42), 1.6, 2.2, "invoice"))
            group.create_task(hold(web, ("report", 7), 2.4, 1.5, "preview"))
        await asyncio.sleep(FIRST)


def frames(url: str) -> list[Screen]:
    """Return the screens that differ in more than their times."""
    command = [sys.executable, "-m", "aiorwlock_remote", "watch", "--every", "0.2"]
    os.environ["RWLOCK_URL"] = url
    written = prompt = ""
    with recording(command, "rwlock watch", COLUMNS, LINES) as watch:
        worker = threading.Thread(target=lambda: asyncio.run(programs(url)))
        worker.start()
        ended = threading.Thread(target=lambda: _end(worker, watch.process.pid))
        ended.start()
        for written in watch.written():
            prompt = prompt or written.partition("\x1b[?1049h")[0]
        ended.join()
    # Each picture begins at the upper left corner; what follows the last one is drawn
    # below the prompt once more, for those who ended the command.
    pictures = [prompt + one for one in written.split(HOME)[2:]]
    return [screen(one) for one in _differing(pictures)]


def _differing(pictures: Iterable[str]) -> Iterator[str]:
    before = ""
    for one in pictures:
        if _shape(one) != _shape(before):
            yield one
        before = one


def _shape(picture: str) -> str:
    lines = ("".join(text for text, _ in line) for line in screen(picture))
    return re.sub(r"\d[\d.:]* ?(s|ms|Z)?", "", "\n".join(lines))


def _end(worker: threading.Thread, watching: int) -> None:
    worker.join()
    os.kill(watching, signal.SIGINT)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = frames("sqlite:///locks.db")
        picture = "\n".join(draw(found, TITLE, COLUMNS)) + "\n"
    (FOLDER / "watch.svg").write_text(picture, encoding="utf-8")
