"""Standard streams that are closed, or whose reader leaves early, as ``head`` does."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def null_stream() -> TextIO:
    """Open a stream that discards what is written to it."""
    return Path(os.devnull).open("w", encoding="utf-8")


def discard_stdout() -> None:
    """Discard what stdout has buffered, and all that is printed later."""
    # Below Python's buffer: what is left in the buffer is flushed at exit, and would
    # fail there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Context for a block that prints: no error if the reader of stdout has gone.

    Further output is discarded, so the command still ends with its own exit code.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def check_reader(fd: int) -> None:
    """Raise ``BrokenPipeError`` if the other end of a pipe or terminal was closed."""
    # No event is asked for: poll() reports a closed end in any case.
    poll = select.poll()
    poll.register(fd, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError
