"""In place of streams that nobody reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def nowhere() -> TextIO:
    """Open; what is written there is lost."""
    return Path(os.devnull).open("w", encoding="utf-8")


def discard_stdout() -> None:
    """Send what is still to be printed, and what is buffered, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print what nobody may want to read to its end, and then tell an exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
