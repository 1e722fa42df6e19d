"""Tasks that acquire, hold and release a lock when a case says so.

Cases order events with these tasks, never with sleeps: a task starts only when the one
before is known to wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypedDict, Unpack

import anyio
from anyio.abc import TaskGroup, TaskStatus

from aiorwlock_remote import Held, LockError
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.harness import AnyLock

Acquiring = AbstractAsyncContextManager[Held]
Condition = Callable[[], Awaitable[bool] | bool]


async def wait_until(condition: Condition, patience: float) -> None:
    """Poll until the condition holds; after ``patience`` seconds: ``TimeoutError``."""
    with anyio.fail_after(patience):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await anyio.sleep(0.005)


class TaskActor:
    """Task that acquires a lock, and releases it when the test case allows it."""

    def __init__(self, actors: TaskActors, name: str) -> None:
        self.name = name
        self.held: Held | None = None
        self.error: LockError | None = None
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self._actors = actors
        self._entered, self._gone = anyio.Event(), anyio.Event()
        self._may_leave = anyio.Event()

    @property
    def waits(self) -> bool:
        """True while the task has neither acquired the lock nor ended."""
        return not self._entered.is_set() and not self._gone.is_set()

    async def inside(self) -> Held:
        """Wait until the task holds the lock; return its grant, or raise its error."""
        await self._actors.within(self._entered)
        if self.error is not None:
            raise self.error
        assert self.held is not None, f"{self.name} was cancelled"
        return self.held

    async def leave(self) -> None:
        self.may_leave()
        await self.gone()

    async def hand_over_to(self, *waiting: TaskActor) -> float:
        """Leave; return the seconds until all of ``waiting`` hold their lock."""
        clock = SystemClock()
        released = clock.now()
        await self.leave()
        for actor in waiting:
            await actor.inside()
        return clock.now() - released

    async def gone(self) -> LockError | None:
        """Wait for the task's end; return the ``LockError`` that it raised, or None."""
        await self._actors.within(self._gone)
        return self.error

    def may_leave(self) -> None:
        """Let the task release its lock, at once or once it has acquired it."""
        self._may_leave.set()

    async def run(
        self, acquire: Callable[[], Acquiring], *, task_status: TaskStatus[None]
    ) -> None:
        """Body of the task: acquire, wait for ``may_leave``, release."""
        with self.scope:
            try:
                acquisition = acquire()
                task_status.started()
                async with acquisition as self.held:
                    self._actors.order.append(self.name)
                    self._entered.set()
                    await self._may_leave.wait()
            except LockError as exc:
                self.error = exc
        self._entered.set()
        self._gone.set()


class AcquireArgs(TypedDict, total=False):
    """Arguments of ``acquire`` that the tasks of ``TaskActors`` can pass."""

    timeout: float | None
    reason: str


class TaskActors:
    """Starts tasks that acquire a lock; ``order``: their names as they acquired it."""

    def __init__(self, group: TaskGroup, patience: float) -> None:
        self.order: list[str] = []
        self.group = group
        self._patience = patience
        self._actors: list[TaskActor] = []

    async def asks(
        self, lock: AnyLock, name: str = "actor", **how: Unpack[AcquireArgs]
    ) -> TaskActor:
        """Start a task that acquires the lock; return once ``acquire`` is called.

        ``how``: the ``timeout`` and the ``reason`` for ``acquire``.
        """
        return await self._start(partial(lock.acquire, **how), name)

    async def upgrades(self, held: Held) -> TaskActor:
        """Start a task that upgrades the grant; return once ``upgrade`` is called."""

        @asynccontextmanager
        async def upgraded() -> AsyncIterator[Held]:
            moved = await held.upgrade()
            try:
                yield moved
            finally:
                await moved.release()

        return await self._start(upgraded, "upgrader")

    async def _start(self, acquire: Callable[[], Acquiring], name: str) -> TaskActor:
        actor = TaskActor(self, name)
        self._actors.append(actor)
        await self.group.start(actor.run, acquire)
        return actor

    async def enters(
        self, lock: AnyLock, name: str = "actor", **how: Unpack[AcquireArgs]
    ) -> TaskActor:
        """Start a task that acquires the lock; return once the lock is held."""
        actor = await self.asks(lock, name, **how)
        await actor.inside()
        return actor

    async def queues(
        self, lock: AnyLock, name: str = "actor", **how: Unpack[AcquireArgs]
    ) -> TaskActor:
        """Start a task that acquires the lock; return once one more entry is queued."""
        before = len((await lock.info()).queue)
        actor = await self.asks(lock, name, **how)
        await self.queue_has(lock, before + 1)
        return actor

    async def queue_has(self, lock: AnyLock, count: int) -> None:
        """Wait until the lock's queue in the store has ``count`` entries."""

        async def has() -> bool:
            return len((await lock.info()).queue) == count

        await self.until(has)

    async def nothing_left(self, lock: AnyLock) -> None:
        """Wait until the lock has neither holders nor queue entries."""

        async def nothing() -> bool:
            shown = await lock.info()
            return not shown.holders and not shown.queue

        await self.until(nothing)

    async def until(self, condition: Condition) -> None:
        await wait_until(condition, self._patience)

    async def within(self, event: anyio.Event) -> None:
        with anyio.fail_after(self._patience):
            await event.wait()

    def all_may_leave(self) -> None:
        for actor in self._actors:
            actor.may_leave()

    async def finish(self) -> None:
        """Let all tasks acquire and release their locks, and wait for their ends."""
        self.all_may_leave()
        for actor in self._actors:
            await actor.gone()
