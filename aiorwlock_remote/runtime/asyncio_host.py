"""asyncio as a host, whatever implements the loop; imported only where it runs."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.host import log, quietly


class AsyncioHost:
    """asyncio, whatever implements the loop."""

    def __init__(self, clock: Clock) -> None:
        """Binds to the running loop."""
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        # anyio.CancelScope() finds out each time which library runs.
        self._scope = type(anyio.CancelScope())

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            log.debug("loop is closed")

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself."""
        task = self._loop.create_task(quietly(function))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def new_scope(self) -> anyio.CancelScope:
        """A cancel scope."""
        return self._scope()

    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def current_task(self) -> asyncio.Task[Any]:
        """The running task."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        return task

    def task_name(self) -> str:
        """The running task's name."""
        return self.current_task().get_name()

    def finished(self, task: weakref.ref[asyncio.Task[Any]]) -> bool:
        """Whether that task has ended."""
        found = task()
        return found is None or found.done()
