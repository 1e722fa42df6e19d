"""The event loop a ``Locks`` lives on: asyncio (any loop) or trio, seen alike.

Finds the host of the running loop, and imports no other library for it.

Local time that goes on while the host is suspended, as leases do.
"""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from socket import socket
from typing import Any, Protocol

import anyio

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

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


log: logging.Logger = logging.getLogger("aiorwlock_remote.runtime")


class TaskEventLoop(Protocol):
    """A ``Host`` that also knows its tasks."""

    clock: Clock

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself."""

    def reads(
        self, sock: socket, function: Callable[[], object]
    ) -> Callable[[], object]:
        """Call it whenever the socket can be read; see ``Reads``."""

    def at_end(self, function: Callable[[], object]) -> None:
        """Run it after this turn's tasks; see ``Reads``."""

    def new_scope(self) -> anyio.CancelScope:
        """A cancel scope of this loop's library."""

    def here(self) -> bool:
        """Whether the caller runs in this loop."""

    def current_task(self) -> object:
        """The running task."""

    def task_name(self) -> str:
        """The running task's name, for people."""

    def finished(self, task: weakref.ref[Any]) -> bool:
        """Whether that task has ended. From any thread."""

    def is_closed(self) -> bool:
        """Whether the loop itself has ended, for good. From any thread."""


async def run_logged(function: Callable[[], Awaitable[None]]) -> None:
    """Run it and log what it raises, which would end a run if a system task did."""
    try:
        await function()
    except Exception:  # noqa: BLE001 - it is logged
        log_event(log, "background task failed", logging.ERROR, exc_info=True)


def current_event_loop(clock: Clock | None = None) -> TaskEventLoop:
    """The host of the running loop."""
    trio = sys.modules.get("trio")  # never imported for asyncio's sake
    if trio is not None and trio.lowlevel.in_trio_run():
        from aiorwlock_remote.runtime.trio_loop import TrioEventLoop  # noqa: PLC0415

        return TrioEventLoop(clock or SystemClock())
    from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop  # noqa: PLC0415

    return AsyncioEventLoop(clock or SystemClock())


def require_asyncio() -> TaskEventLoop:
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
    return current_event_loop()
