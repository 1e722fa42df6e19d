"""Waiting for a file that another process has locked for a moment."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from random import uniform

from aiorwlock_remote.backends.sqlite.errors import is_busy
from aiorwlock_remote.ports import Clock


def retry_while_busy(action: Callable[[], object], clock: Clock, until: float) -> None:
    """Do it, again and again until a local time if the file is locked.

    SQLite's own busy handler sleeps up to 100 ms between tries; many processes that
    each want the file for less than a millisecond need shorter, random ones.
    """
    while True:
        try:
            action()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc) or clock.now() >= until:
                raise
            time.sleep(uniform(0.0002, 0.002))
        else:
            return
