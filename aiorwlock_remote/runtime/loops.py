"""Finds the host of the running loop, and imports no other library for it."""

from __future__ import annotations

import sys

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.clock import SystemClock
from aiorwlock_remote.runtime.host import LoopHost


def current_host(clock: Clock | None = None) -> LoopHost:
    """The host of the running loop."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.runtime.trio_loop import TrioHost  # noqa: PLC0415

        return TrioHost(clock or SystemClock())
    from aiorwlock_remote.runtime.asyncio_loop import AsyncioHost  # noqa: PLC0415

    return AsyncioHost(clock or SystemClock())


def asyncio_only() -> LoopHost:
    """The running loop, for drivers that know no other.

    Raises:
        ConfigurationError: it is trio's.
    """
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        raise ConfigurationError(
            what="this library works on asyncio only",
            hint="on trio, use Redis or a folder",
        )
    return current_host()
