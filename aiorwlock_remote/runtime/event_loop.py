"""The event loop of a ``Locks``, asyncio's or trio's, behind one interface.

The adapter of the other library is never imported.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import anyio

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, EventLoop, SocketEventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.runtime")

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """``CLOCK_BOOTTIME`` where it exists, else the monotonic clock.

    Leases in the store run on while the host is suspended, and so does this clock.
    """

    def __init__(self) -> None:
        # Functions of C, not methods: they are called several times a request.
        self.now: Callable[[], float] = (
            time.monotonic
            if _BOOTTIME is None
            else partial(time.clock_gettime, _BOOTTIME)
        )
        self.wall: Callable[[], float] = time.time


class TaskEventLoop(EventLoop, SocketEventLoop, Protocol):
    """An event loop that also knows its tasks."""

    def new_scope(self) -> anyio.CancelScope:
        """Return a cancel scope of this loop's library."""

    def here(self) -> bool:
        """Return whether the caller runs in this loop."""

    def current_task(self) -> object:
        """Return the running task."""

    def task_name(self) -> str:
        """Return the name of the running task, for people."""

    def finished(self, task: weakref.ref[Any]) -> bool:
        """Return whether a task has ended. From any thread."""

    def is_closed(self) -> bool:
        """Return whether the loop itself has ended, for good. From any thread."""


async def run_logged(function: Callable[[], Awaitable[None]]) -> None:
    """Run a background task, and log what it raises.

    trio ends the whole run with ``TrioInternalError`` if a system task raises.
    """
    # Cancellation and ``SystemExit`` pass: they belong to the loop.
    try:
        await function()
    except Exception:  # noqa: BLE001 - it is logged
        log_event(log, "background_task_failed", logging.ERROR, exc_info=True)


def current_event_loop(clock: Clock | None = None) -> TaskEventLoop:
    """Return the adapter of the running loop."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.runtime.trio_loop import TrioEventLoop  # noqa: PLC0415

        return TrioEventLoop(clock or SystemClock())
    from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop  # noqa: PLC0415

    return AsyncioEventLoop(clock or SystemClock())


def require_asyncio() -> TaskEventLoop:
    """Return the running loop, for drivers that work on asyncio only.

    Raises:
        ConfigurationError: the loop is trio's.
    """
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        raise ConfigurationError(
            what="this library works on asyncio only",
            hint="on trio, use Redis or a folder",
        )
    return current_event_loop()
