"""Local time that goes on while the host is suspended, as leases do."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """CLOCK_BOOTTIME where it exists, else the monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()
