"""The event loop a ``Locks`` lives on: asyncio (any loop) or trio, seen alike."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from anyio.lowlevel import current_token
from sniffio import current_async_library

from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.clock import SystemClock

if TYPE_CHECKING:
    import trio

log = logging.getLogger("aiorwlock_remote.runtime")


class Task(Protocol):
    """An opaque, weakly referable task of either library."""


class LoopHost(Protocol):
    """A ``Host`` that also knows its tasks."""

    clock: Clock

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself."""

    def here(self) -> bool:
        """Whether the caller runs in this loop."""

    def current_task(self) -> Any:
        """The running task."""

    def task_name(self) -> str:
        """The running task's name, for people."""

    def finished(self, task: weakref.ref[Any]) -> bool:
        """Whether that task has ended. From any thread."""


def current_host(clock: Clock | None = None) -> LoopHost:
    """The host of the running loop."""
    if current_async_library() == "trio":
        return TrioHost(clock or SystemClock())
    return AsyncioHost(clock or SystemClock())


async def _quietly(function: Callable[[], Awaitable[None]]) -> None:
    # A trio system task that raises would end the whole run.
    try:
        await function()
    except Exception:
        log.exception("background task failed")


class AsyncioHost:
    """asyncio, whatever implements the loop."""

    def __init__(self, clock: Clock) -> None:
        """Binds to the running loop."""
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            log.debug("loop is closed")

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a task of the loop itself."""
        task = self._loop.create_task(_quietly(function))
        self._tasks.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._tasks.discard)

    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def current_task(self) -> asyncio.Task[Any]:
        """The running task."""
        task = asyncio.current_task()
        assert task is not None
        return task

    def task_name(self) -> str:
        """The running task's name."""
        return self.current_task().get_name()

    def finished(self, task: weakref.ref[asyncio.Task[Any]]) -> bool:
        """Whether that task has ended."""
        found = task()
        return found is None or found.done()


class TrioHost:
    """trio."""

    def __init__(self, clock: Clock) -> None:
        """Binds to the running loop."""
        import trio

        self.clock = clock
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop's thread, soon; from any thread."""
        try:
            self._token.run_sync_soon(function, *args)
        except self._trio.RunFinishedError:
            log.debug("run has finished")

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run it as a system task."""
        self._trio.lowlevel.spawn_system_task(_quietly, function)

    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        try:
            return current_token() is not None and (
                self._trio.lowlevel.current_trio_token() is self._token
            )
        except RuntimeError:
            return False

    def current_task(self) -> trio.lowlevel.Task:
        """The running task."""
        return self._trio.lowlevel.current_task()

    def task_name(self) -> str:
        """The running task's name."""
        return self.current_task().name

    def finished(self, task: weakref.ref[trio.lowlevel.Task]) -> bool:
        """Whether that task has ended: its coroutine has no frame left."""
        found = task()
        return found is None or getattr(found.coro, "cr_frame", None) is None
