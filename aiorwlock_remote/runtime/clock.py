"""Local time that goes on while the host is suspended, as leases do."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """CLOCK_BOOTTIME where it exists, else the monotonic clock."""

    def __init__(self) -> None:
        # Functions of C, not methods: they are called several times a request.
        self.now: Callable[[], float] = (
            time.monotonic
            if _BOOTTIME is None
            else partial(time.clock_gettime, _BOOTTIME)
        )
        self.wall: Callable[[], float] = time.time
