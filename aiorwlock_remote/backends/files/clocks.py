"""The clock of the records in files: one host's boot clock, or the file server's.

Hosts that share a mount have one clock in common: the one by which the file server
stamps changes. It is read by touching a file and looking at the stamp. No two hosts'
own clocks are ever compared.

The file ``.boot`` says in which boot of this host, and by which clock of it, the times
of the records were taken. The file is not synced: the next boot does not need it, and
accepts one that a power cut left blank.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from aiorwlock_remote.backends.files.system import read_small_file
from aiorwlock_remote.core.timing import MICROS, micros
from aiorwlock_remote.embedded.boot_id import BootId
from aiorwlock_remote.errors import BadRecord, Unsupported
from aiorwlock_remote.ports import Clock

BOOT_CLOCK, SERVER_CLOCK = "boot", "server"
"""The kinds of clocks, as the mark of a directory names them."""
BOOT_FILE = ".boot"
BOOT_FILE_BYTES = 512


class BootClock:
    """The clock of one host: runs while the host sleeps, restarts with each boot."""

    kind: str = BOOT_CLOCK

    def __init__(self, clock: Clock) -> None:
        # The boot in which the times of a record must have been written. Empty where
        # the host does not name its boots, and before the directory is open.
        self.boot: str = ""
        self._clock = clock

    def check(self) -> None:
        """Do nothing: the resolution of the boot clock suffices for leases."""

    def times(self) -> tuple[int, int]:
        """Return the boot clock and the wall clock, in microseconds."""
        return micros(self._clock.now()), micros(self._clock.wall())


class ServerClock:
    """The clock of the file server, by which grants outlive a reboot of any host.

    It is read by touching the file ``touched``. The time may be late by one timer
    interval of the server's kernel, 10 ms at most: a fifth of the default margin by
    which a holder stops before its lease ends.
    """

    kind: str = SERVER_CLOCK
    boot: str = SERVER_CLOCK

    def __init__(self, touched: str) -> None:
        self._touched = touched

    def check(self) -> None:
        """Raise ``Unsupported`` if times are whole seconds, too coarse for leases."""
        # Whole seconds may be chance once, but not twice within 30 ms.
        for _ in range(2):
            now, _ = self.times()
            if now % MICROS:
                return
            time.sleep(0.03)
        raise Unsupported(
            what="the file system stamps changes by the second only",
            hint="too coarse for leases: keep the directory elsewhere",
        )

    def times(self) -> tuple[int, int]:
        """Return the server's time (µs) twice: in place of boot and wall clock."""
        os.utime(self._touched)  # without times: the server sets its own
        now = os.stat(self._touched).st_mtime_ns // 1000  # noqa: PTH116
        return now, now


FileClock = BootClock | ServerClock


def read_boot_file(path: str) -> BootId | None:
    """Return the boot id in the boot file at ``path``; None if the file is blank.

    The boot file says in which boot of the host the times of the records were taken.
    Raises ``BadRecord`` for another content, ``OSError`` if there is no such file.
    """
    text = read_small_file(path, BOOT_FILE_BYTES).strip(b"\0 \n")
    if not text:
        return None
    try:
        read: Any = json.loads(text)
        return BootId(str(read["boot"]), str(read["shift"]))
    except (ValueError, KeyError, TypeError):
        raise BadRecord(
            what=f"{path} is damaged, or another program's",
            hint="remove it while no process uses the directory",
        ) from None


def write_boot_file(file: int, boot: BootId) -> None:
    """Write ``boot`` by one system call to a boot file, by its descriptor ``file``."""
    text = json.dumps({"boot": boot.id, "shift": boot.shift})
    os.pwrite(file, text.encode().ljust(BOOT_FILE_BYTES - 1) + b"\n", 0)
