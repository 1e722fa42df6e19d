"""What time it is: on one host its boot clock, on many the file server's.

Hosts that share a mount have one clock in common: the one by which the file server
stamps what is changed. It is read by touching a file and looking when that was. No
host's own clock is ever compared with another's.

``.boot``: which boot of this host, and which clock of it, the files' times are of.

Not synced, as it is of no use to the next boot: a power cut may leave it blank.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Protocol

from aiorwlock_remote.backends.files.system import read_small_file
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.errors import BadRecord, Unsupported
from aiorwlock_remote.ports import Clock

BOOT_CLOCK, SERVER_CLOCK = "boot", "server"


class FileClock(Protocol):
    """Microseconds; ``boot``: what the times of a record must have been written in.

    It is empty where the host does not tell, and before the directory is open.
    """

    kind: str
    boot: str

    def check(self) -> None:
        """Whether it can be used.

        Raises:
            Unsupported: it is too coarse.
        """

    def times(self) -> tuple[int, int]:
        """Now, and the wall clock. To be asked with the lock in hand."""


class BootClock:
    """Goes on while the host is suspended, begins anew with each boot."""

    kind: str = BOOT_CLOCK

    def __init__(self, clock: Clock) -> None:
        """``clock``: of this host."""
        self.boot: str = ""
        self._clock = clock

    def check(self) -> None:
        """It can."""

    def times(self) -> tuple[int, int]:
        """The boot clock, the wall clock."""
        return micros(self._clock.now()), micros(self._clock.wall())


class ServerClock:
    """The clock of whoever keeps the files. No boot of any host ends a grant.

    Its stamps may be late by a tick of its kernel, 10 ms at most: a fifth of the margin
    by which a holder stops before its lease ends, unless it is told another.
    """

    kind: str = SERVER_CLOCK
    boot: str = SERVER_CLOCK

    def __init__(self, touched: str) -> None:
        """``touched``: a file of ours, whose time of change tells nothing else."""
        self._touched = touched

    def check(self) -> None:
        """Whether its stamps are finer than a second."""
        for _ in range(2):
            now, _ = self.times()
            if now % MICROS:
                return
            time.sleep(0.03)
        raise Unsupported(
            what="the file system stamps what is changed by the second only",
            hint="too coarse for leases: keep the directory elsewhere",
        )

    def times(self) -> tuple[int, int]:
        """Twice the same."""
        os.utime(self._touched)  # no times: the server puts its own
        now = os.stat(self._touched).st_mtime_ns // 1000  # noqa: PTH116
        return now, now


BOOT_FILE = ".boot"
BOOT_FILE_BYTES = 512


def read_boot_file(path: str) -> BootId | None:
    """What the file at ``path`` says; None: nothing.

    Raises:
        BadRecord: nothing of ours.
        OSError: it is not there, or whatever else the system says.
    """
    text = read_small_file(path, BOOT_FILE_BYTES).strip(b"\0 \n")
    if not text:
        return None
    try:
        told: Any = json.loads(text)
        return BootId(str(told["boot"]), str(told["shift"]))
    except (ValueError, KeyError, TypeError):
        raise BadRecord(
            what=f"{path} is not ours, or damaged",
            hint="remove it while no process uses the directory",
        ) from None


def write_boot_file(file: int, boot: BootId) -> None:
    """Write it, in one piece. ``file``: open, and locked."""
    text = json.dumps({"boot": boot.id, "shift": boot.shift})
    os.pwrite(file, text.encode().ljust(BOOT_FILE_BYTES - 1) + b"\n", 0)
