"""``TrioEventLoop``: adapter of trio; imported only if trio runs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable

import anyio
import trio

from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import log, run_logged, scope_class


class TrioEventLoop:
    """Adapter of the present trio run; background tasks are trio's system tasks."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._token = trio.lowlevel.current_trio_token()
        self.new_scope: Callable[[], anyio.CancelScope] = scope_class()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            log_event(log, "loop_closed", logging.DEBUG)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        # A system task is in no nursery of the user's, whose cancellation would end it.
        trio.lowlevel.spawn_system_task(run_logged, function)

    def here(self) -> bool:
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def current_task(self) -> trio.lowlevel.Task:
        return trio.lowlevel.current_task()

    def task_name(self) -> str:
        return trio.lowlevel.current_task().name

    def finished(self, task: weakref.ref[trio.lowlevel.Task]) -> bool:
        found = task()  # a coroutine that has ended has no frame
        return found is None or getattr(found.coro, "cr_frame", None) is None

    def is_closed(self) -> bool:
        try:
            self._token.run_sync_soon(int, idempotent=True)
        except trio.RunFinishedError:
            return True
        return False
