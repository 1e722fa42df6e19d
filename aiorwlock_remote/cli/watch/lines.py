"""A line for each change, for files and programs."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Self, final

import click

from aiorwlock_remote.cli.failure import plain
from aiorwlock_remote.cli.watch.changes import Change


@final
class Lines:
    """Each is written out at once."""

    def __init__(self, form: Callable[[Change, datetime], str]) -> None:
        """``form``: a change as one line."""
        self._form = form

    def check(self) -> None:
        """As ``Show``: who reads no more is noticed though nothing changes."""
        check_reader()

    def tell(self, changes: Sequence[Change], when: datetime) -> None:
        """As ``Show``."""
        for change in changes:
            click.echo(plain(self._form(change, when)))

    def paint(self) -> None:
        """As ``Show``: there is no picture."""

    def leave(self) -> None:
        """As ``Show``: nothing was taken."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Every line is out."""


def check_reader() -> None:
    """Look whether stdout is a pipe, or a terminal, that nobody has open any more.

    Raises:
        BrokenPipeError: it is.
    """
    poll = select.poll()
    poll.register(sys.__stdout__ or sys.stdout, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError
