"""Tasks that come for a lock, wait, enter and leave when they are told to.

Cases put events in order with them and never with sleeps: who asks next is only let
loose when whoever came before is known to wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Unpack

import anyio
from anyio.abc import TaskGroup

from aiorwlock_remote import Held, LockError, Mutex, OptionArgs, RWLock
from aiorwlock_remote.testing.conformance.harness import AnyLock, StoreUnderTest

Condition = Callable[[], Awaitable[bool]]


async def wait_until(told: Condition, patience: float) -> None:
    """Ask until the answer is yes, but not for ever."""
    with anyio.fail_after(patience):
        while not await told():  # noqa: ASYNC110 - the store rings no bell here
            await anyio.sleep(0.005)


class TaskActor:
    """One task: asks for the lock, notes that it entered, stays until told to leave."""

    def __init__(self, party: TaskActors, lock: AnyLock, name: str) -> None:
        self.name = name
        self.held: Held | None = None
        self.error: LockError | None = None
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self._party = party
        self._lock = lock
        self._asking, self._entered = anyio.Event(), anyio.Event()
        self._told, self._gone = anyio.Event(), anyio.Event()

    @property
    def waits(self) -> bool:
        """Whether it has neither entered nor gone."""
        return not self._entered.is_set() and not self._gone.is_set()

    async def inside(self) -> Held:
        """Wait until it has entered; raises what kept it out."""
        await self._party.within(self._entered)
        if self.error is not None:
            raise self.error
        assert self.held is not None, f"{self.name} was cancelled"
        return self.held

    async def leave(self) -> None:
        """Tell it to leave, and wait until it has."""
        self._told.set()
        await self.gone()

    async def gone(self) -> LockError | None:
        """Wait until it has gone; the error it met, if any."""
        await self._party.within(self._gone)
        return self.error

    def may_leave(self) -> None:
        """Let it leave when it likes, which is at once."""
        self._told.set()

    async def visit(
        self, timeout: float | None, reason: str, options: OptionArgs
    ) -> None:
        """The task."""
        with self.scope:
            try:
                wanted = self._lock.acquire(timeout, reason=reason, **options)
                self._asking.set()
                async with wanted as self.held:
                    self._party.order.append(self.name)
                    self._entered.set()
                    await self._told.wait()
            except LockError as exc:
                self.error = exc
        self._entered.set()
        self._gone.set()

    async def asking(self) -> None:
        """Wait until it has asked; from then on it is in its process's queue."""
        await self._party.within(self._asking)


class TaskActors:
    """The guests of one case. ``order``: their names in the order they entered."""

    def __init__(self, group: TaskGroup, patience: float) -> None:
        self.order: list[str] = []
        self.group = group
        self._patience = patience
        self._guests: list[TaskActor] = []

    async def invite(
        self,
        lock: AnyLock,
        name: str = "guest",
        *,
        timeout: float | None = None,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> TaskActor:
        """A guest that has asked for the lock, after all those invited before."""
        guest = TaskActor(self, lock, name)
        self._guests.append(guest)
        self.group.start_soon(guest.visit, timeout, reason, options)
        await guest.asking()
        return guest

    async def enters(
        self,
        lock: AnyLock,
        name: str = "guest",
        *,
        reason: str = "",
        **options: Unpack[OptionArgs],
    ) -> TaskActor:
        """A guest that is inside."""
        guest = await self.invite(lock, name, reason=reason, **options)
        await guest.inside()
        return guest

    async def queues(
        self,
        lock: AnyLock,
        name: str = "guest",
        *,
        timeout: float | None = None,
        reason: str = "",
    ) -> TaskActor:
        """A guest that has a new place in the store's queue."""
        before = len((await lock.info()).queue)
        guest = await self.invite(lock, name, timeout=timeout, reason=reason)
        await self.places(lock, before + 1)
        return guest

    async def places(self, lock: Mutex | RWLock | AnyLock, count: int) -> None:
        """Wait until the store's queue is so long."""

        async def told() -> bool:
            return len((await lock.info()).queue) == count

        await self.until(told)

    async def until(self, told: Condition) -> None:
        """Ask until the answer is yes."""
        await wait_until(told, self._patience)

    async def within(self, event: anyio.Event) -> None:
        """Wait for what was promised, but not for ever."""
        with anyio.fail_after(self._patience):
            await event.wait()

    def all_may_leave(self) -> None:
        """The end of the party."""
        for guest in self._guests:
            guest.may_leave()


@asynccontextmanager
async def task_actors(store: StoreUnderTest) -> AsyncIterator[TaskActors]:
    """A party that ends when all guests have left, within the store's patience."""
    with anyio.fail_after(store.patience):
        async with anyio.create_task_group() as group:
            host = TaskActors(group, store.patience / 2)
            yield host
            host.all_may_leave()
