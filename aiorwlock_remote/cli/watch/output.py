"""A picture at a terminal, painted anew in its place.

A line for each change, for files and programs.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Self, final

import anyio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aiorwlock_remote.cli.report import plain
from aiorwlock_remote.cli.watch.render import Line, Size
from aiorwlock_remote.cli.watch.state import Change

PIPE_RETRY_INTERVAL = 0.05
"""Seconds after which a pipe that was full is looked at again."""


@final
class LineOutput:
    """Each is written out at once."""

    def __init__(self, form: Callable[[Change, datetime], str], fd: int) -> None:
        """``form``: a change as one line. ``fd``: where it is written to."""
        self._form = form
        self._fd = fd

    def check(self) -> None:
        """As ``WatchOutput``: who reads no more is noticed though nothing changes."""
        check_reader(self._fd)

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``WatchOutput``; can be cancelled while the reader takes its time.

        A write that blocks would keep signals waiting. One of so few bytes does not,
        if the pipe is ready.
        """
        lines = [plain(self._form(change, when)) + "\n" for change in changes]
        left = "".join(lines).encode(errors="backslashreplace")
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        while left:
            if ready.poll(0):
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
            else:
                await anyio.sleep(PIPE_RETRY_INTERVAL)

    def paint(self) -> None:
        """As ``WatchOutput``: there is no picture."""

    def leave(self) -> None:
        """As ``WatchOutput``: nothing was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Every line is out."""


def check_reader(fd: int) -> None:
    """Look whether it is a pipe, or a terminal, that nobody has open any more.

    Raises:
        BrokenPipeError: it is.
    """
    poll = select.poll()
    poll.register(fd, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


Draw = Callable[[Size], Sequence[Line]]


@final
class ScreenOutput:
    """On the terminal's other screen, so that a change of size leaves no traces.

    The last picture stays on the ordinary one: what it names may be wanted.
    """

    def __init__(self, console: Console, draw: Draw) -> None:
        """``draw``: what there is to see."""
        self._console = console
        self._draw = draw
        self._live = Live(console=console, screen=True, auto_refresh=False)

    def check(self) -> None:
        """As ``WatchOutput``."""
        check_reader(self._console.file.fileno())

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``WatchOutput``: the picture tells."""

    def paint(self) -> None:
        """As ``WatchOutput``; the first one takes the terminal."""
        self._live.start()
        self._live.update(self._text(), refresh=True)

    def leave(self) -> None:
        """As ``WatchOutput``: as it was before, until it is painted again."""
        self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            with suppress(OSError):  # the terminal may be gone
                self._live.stop()
                self._console.print(self._text())

    def _text(self) -> Text:
        lines = self._draw(Size(*self._console.size))
        text = Text("\n").join(Text(line.text, line.style) for line in lines)
        text.no_wrap, text.overflow = True, "crop"
        return text
