"""A line for each change, for files and programs."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Self, final

import anyio

from aiorwlock_remote.cli.report import plain
from aiorwlock_remote.cli.watch.changes import Change

FULL = 0.05
"""Seconds after which a pipe that was full is looked at again."""


@final
class Lines:
    """Each is written out at once."""

    def __init__(self, form: Callable[[Change, datetime], str], fd: int) -> None:
        """``form``: a change as one line. ``fd``: where it is written to."""
        self._form = form
        self._fd = fd

    def check(self) -> None:
        """As ``Show``: who reads no more is noticed though nothing changes."""
        check_reader(self._fd)

    async def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``Show``; can be cancelled while the reader takes its time.

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
                await anyio.sleep(FULL)

    def paint(self) -> None:
        """As ``Show``: there is no picture."""

    def leave(self) -> None:
        """As ``Show``: nothing was taken."""

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
