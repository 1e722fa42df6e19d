"""CPU time, memory and placement of processes in any language, seen from outside."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MEASURABLE = sys.platform == "linux"
"""Whether the kernel shows what other processes use (``/proc``)."""
_AFTER_NAME = (11, 12)
"""User and system time in ``/proc/…/stat``, counted from behind the program's name."""


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the CPU time that all threads of the processes have used so far."""
    ticks = 0
    for process in processes:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        # The name is in brackets, and may have blanks and brackets of its own.
        fields = text.rpartition(")")[2].split()
        ticks += sum(int(fields[index]) for index in _AFTER_NAME)
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_share(seconds: float) -> float:
    """Return which share of the whole machine's CPU time was used in that time."""
    idle_before, all_before = _ticks_of_machine()
    time.sleep(seconds)
    idle, everything = _ticks_of_machine()
    return 1 - (idle - idle_before) / max(1, everything - all_before)


def _ticks_of_machine() -> tuple[int, int]:
    """Return the ticks that the cores were idle, or waited for disks, and all ticks."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def resident_bytes(process: int) -> int:
    """Return the memory that a process occupies now."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def children_on(core: int | None) -> Iterator[None]:
    """Let processes that start inside the block run on one core only; None: on any."""
    if sys.platform != "linux" or core is None:
        yield
        return
    # A child inherits the placement: so all threads of a virtual machine have it.
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
