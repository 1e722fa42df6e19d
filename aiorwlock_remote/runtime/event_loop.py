"""``TaskEventLoop``: asyncio or trio, whichever runs, behind one interface.

The adapter of the library that does not run is never imported.
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

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.runtime")

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """Local clocks: ``now()``, seconds since boot, and ``wall()``, Unix time. ``now()``
    reads ``CLOCK_BOOTTIME`` where it exists, else the monotonic clock: leases in the
    store run on while the host is suspended, and so does this clock.
    """

    def __init__(self) -> None:
        # Functions of C, not methods: they are called several times a request.
        self.now: Callable[[], float] = (
            time.monotonic
            if _BOOTTIME is None
            else partial(time.clock_gettime, _BOOTTIME)
        )
        self.wall: Callable[[], float] = time.time


class TaskEventLoop(EventLoop, Protocol):
    """Interface of an event loop that also knows its tasks."""

    @property
    def new_scope(self) -> Callable[[], anyio.CancelScope]: ...

    def here(self) -> bool:
        """Return whether the caller runs in this event loop."""

    def current_task(self) -> object: ...

    def task_name(self) -> str: ...

    def finished(self, task: weakref.ref[Any]) -> bool:
        """Return whether a task has ended. May be called in any thread."""

    def is_closed(self) -> bool:
        """Return whether the loop has ended for good. May be called in any thread."""


async def run_logged(function: Callable[[], Awaitable[None]]) -> None:
    """Await ``function()``; log its error, which would end the whole run of trio."""
    # Cancellation and ``SystemExit`` pass: they belong to the loop.
    try:
        await function()
    except Exception:  # noqa: BLE001 - it is logged
        log_event(log, "background_task_failed", logging.ERROR, exc_info=True)


def scope_class() -> Callable[[], anyio.CancelScope]:
    """Return what makes cancel scopes in the running loop; called in that loop."""
    # ``anyio.CancelScope()`` looks for the running library at each call: a microsecond
    # for each ``async with`` of a lock. That it returns an object of another class,
    # which can be called as well, is not documented.
    made: type[anyio.CancelScope] = type(anyio.CancelScope())
    try:
        usable = isinstance(made(), anyio.CancelScope)
    except Exception:  # noqa: BLE001 - whatever a class says that is not to be called
        usable = False
    if usable:
        return made
    report_differing("anyio", "type(CancelScope())", "anyio.CancelScope(), slower")
    return anyio.CancelScope


def current_event_loop(clock: Clock | None = None) -> TaskEventLoop:
    """Return an adapter of the running asyncio or trio loop, which uses ``clock``."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.runtime.trio_loop import TrioEventLoop  # noqa: PLC0415

        return TrioEventLoop(clock or SystemClock())
    from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop  # noqa: PLC0415

    return AsyncioEventLoop(clock or SystemClock())


def require_asyncio() -> TaskEventLoop:
    """Return an adapter of the running loop. On trio, raise ``ConfigurationError``."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        raise ConfigurationError(
            what="this library works on asyncio only",
            hint="on trio, use Redis or a folder",
        )
    return current_event_loop()
