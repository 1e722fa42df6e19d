"""Children of a test's own process."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """As ``os.fork``. There are threads, that is the point: Python warns of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def exit_code(child: int) -> int:
    """What it ended with; it ends at once."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
