"""``AsyncioEventLoop``: adapter of asyncio; imported only if asyncio runs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from aiorwlock_remote._util.driver_loop import UncancelledStart
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import log, run_logged, scope_class


class _Forking(threading.local):
    # The task in which this thread forks. The code of that task runs on in the child
    # process, where asyncio has no current task since Python 3.14.
    task: asyncio.Task[Any] | None = None

    def remember(self) -> None:
        try:
            self.task = asyncio.current_task()
        except RuntimeError:  # a thread without an event loop
            self.task = None

    def forget(self) -> None:
        self.task = None


_forking = _Forking()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_forking.remember, after_in_parent=_forking.forget)


class AsyncioEventLoop:
    """Adapter of the running asyncio loop, also if uvloop implements it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.new_scope: Callable[[], anyio.CancelScope] = scope_class()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: no task is left that could want the call. The keeper's
            # thread may still find a loss (test_loop_ended.py).
            log_event(log, "loop_closed", logging.DEBUG)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        task = self._loop.create_task(UncancelledStart(run_logged(function)))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def current_task(self) -> object:
        task = asyncio.current_task(self._loop) or _forking.task
        assert task is not None
        return task

    def task_name(self) -> str:
        task = asyncio.current_task(self._loop) or _forking.task
        assert task is not None
        return task.get_name()

    def finished(self, task: weakref.ref[Any]) -> bool:
        found = task()
        return found is None or found.done()

    def is_closed(self) -> bool:
        return self._loop.is_closed()  # a loop that only stopped may run again
