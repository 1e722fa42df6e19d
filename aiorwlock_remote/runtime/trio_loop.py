"""trio as a host; imported only where trio runs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable
from socket import socket

import anyio
import trio

from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import log, run_logged


class TrioEventLoop:
    """trio."""

    def __init__(self, clock: Clock) -> None:
        """Binds to the running loop."""
        self.clock = clock
        self._token = trio.lowlevel.current_trio_token()
        # anyio.CancelScope() finds out each time which library runs.
        self._scope = type(anyio.CancelScope())

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            log_event(log, "run has finished", logging.DEBUG)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a system task."""
        trio.lowlevel.spawn_system_task(run_logged, function)

    def reads(
        self, sock: socket, function: Callable[[], object]
    ) -> Callable[[], object]:
        """Call it whenever the socket can be read; see ``Reads``."""
        scope = trio.CancelScope()

        async def reading() -> None:
            with scope:
                while not scope.cancel_called:  # perhaps before it began
                    await trio.lowlevel.wait_readable(sock)
                    try:
                        function()
                    except Exception:  # noqa: BLE001 - what comes next is to be read
                        log_event(log, "a reader failed", logging.ERROR, exc_info=True)

        self.spawn(reading)
        return scope.cancel

    def at_end(self, function: Callable[[], object]) -> None:
        """Run it after this turn's tasks; see ``Reads``."""
        self._token.run_sync_soon(function)

    def new_scope(self) -> anyio.CancelScope:
        """A cancel scope."""
        return self._scope()

    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def current_task(self) -> trio.lowlevel.Task:
        """The running task."""
        return trio.lowlevel.current_task()

    def task_name(self) -> str:
        """The running task's name."""
        return self.current_task().name

    def finished(self, task: weakref.ref[trio.lowlevel.Task]) -> bool:
        """Whether that task has ended: its coroutine has no frame left."""
        found = task()
        return found is None or getattr(found.coro, "cr_frame", None) is None

    def is_closed(self) -> bool:
        """Whether the run has finished: it can be asked for nothing any more."""
        try:
            self._token.run_sync_soon(int, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False
