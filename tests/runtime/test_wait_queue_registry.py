"""The registry of wait queues: which tasks wake, also with thousands of names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Granted,
    Waiting,
    Withdrawn,
)
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import (
    MAX_IDLE_QUEUES,
    TaskWaiter,
    WaitQueue,
)

DAY = 86_400.0


@pytest.mark.anyio
async def test_queues_in_use_are_not_scanned_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def busy(queue: WaitQueue) -> bool:  # noqa: ARG001 - somebody waits at each of them
        nonlocal looks
        looks += 1
        return False

    monkeypatch.setattr(WaitQueue, "idle", property(busy))
    many = 8 * MAX_IDLE_QUEUES
    async with connect("memory://") as locks:
        queues = locks._session.client.queues
        for number in range(many):
            queues.queue(resource("many", number))
        assert len(queues._queues) == many
    assert many / 2 < looks < 4 * many


@pytest.mark.anyio
async def test_idle_queues_are_forgotten() -> None:
    async with connect("memory://") as locks:
        queues = locks._session.client.queues
        for number in range(8 * MAX_IDLE_QUEUES):
            queues.queue(resource("many", number))
            assert len(queues._queues) <= MAX_IDLE_QUEUES


class AnsweringStore:
    """A store that wakes nobody and says when each side is to look again."""

    poll_policy = PollPolicy(poll_min=600, poll_max=600, entry_ttl=1800)

    def __init__(self) -> None:
        self.answers: dict[Mode, Waiting | Granted] = {}
        self.asked: dict[Mode, anyio.Event] = {
            mode: anyio.Event() for mode in LOCK_MODES
        }

    def waits(self, mode: Mode, seconds: float) -> None:
        self.answers[mode] = Waiting(0, int(seconds * 1e6))

    def grants(self, waiter: TaskWaiter) -> None:
        grant = waiter.claim.grant(Mode.READ, 1, 0)
        self.answers[Mode.READ] = Granted((grant,), 0)

    async def is_asked(self, mode: Mode) -> None:
        """From now on, once more."""
        self.asked[mode] = anyio.Event()
        with anyio.fail_after(20):
            await self.asked[mode].wait()

    def step(self, resource: Resource, command: Command) -> Pending[Any]:  # noqa: ARG002
        answer: Pending[Any] = Pending()
        if isinstance(command, Acquire):
            self.asked[command.mode].set()
            answer.set_result(self.answers[command.mode])
        else:
            answer.set_result(Withdrawn())
        return answer

    def watch(self, resource: Resource) -> None:
        pass

    def unwatch(self, resource: Resource) -> None:
        pass


@asynccontextmanager
async def wait_queue_with_store() -> AsyncIterator[tuple[AnsweringStore, WaitQueue]]:
    """One wait queue at such a store."""
    async with connect("memory://") as locks:
        store = AnsweringStore()
        event_loop = locks._session.loop
        client = StoreClient(event_loop, StoreSettings("here"))
        client.store = store  # type: ignore[assignment]
        queues = client.queues
        yield store, queues.queue(resource("order", 1))
        queues.close()


def joined(
    queue: WaitQueue, mode: Mode, store: AnsweringStore, seconds: float
) -> TaskWaiter:
    """Somebody who waits, and whose side is to look again after so long."""
    store.waits(mode, seconds)
    waiter = TaskWaiter(Claim(f"{mode}er", None), Policy.FAIR)
    queue.join(waiter, mode)
    return waiter


def leaves(queue: WaitQueue, reader: TaskWaiter, store: AnsweringStore) -> None:  # noqa: ARG001
    queue.leave(reader, Mode.READ)


def gets_in(queue: WaitQueue, reader: TaskWaiter, store: AnsweringStore) -> None:  # noqa: ARG001
    store.grants(reader)


def waits_longer(queue: WaitQueue, reader: TaskWaiter, store: AnsweringStore) -> None:  # noqa: ARG001
    store.waits(Mode.READ, 300)


@pytest.mark.anyio
@pytest.mark.parametrize("reader_does", [leaves, gets_in, waits_longer])
async def test_the_mode_that_is_due_later_is_sent_too(
    reader_does: Callable[[WaitQueue, TaskWaiter, AnsweringStore], None],
) -> None:
    """The reader was due first, and what it does then is its own affair."""
    async with wait_queue_with_store() as (store, queue):
        reader = joined(queue, Mode.READ, store, 0.02)
        joined(queue, Mode.WRITE, store, 0.04)
        reader_does(queue, reader, store)
        await store.is_asked(Mode.WRITE)


@pytest.mark.asyncio
async def test_whoever_cancels_all_tasks_ends_no_look_out() -> None:
    before = asyncio.all_tasks()
    async with wait_queue_with_store() as (store, queue):
        joined(queue, Mode.WRITE, store, 0.02)
        await asyncio.sleep(0)  # it looks out
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await asyncio.sleep(0)  # it is cancelled
        queue.wake()
        await store.is_asked(Mode.WRITE)


@pytest.mark.anyio
async def test_alarms_that_nobody_waits_for_are_forgotten() -> None:
    async with connect("memory://") as locks:
        queues = locks._session.client.queues
        for number in range(8 * MAX_IDLE_QUEUES):
            there = resource("order", number)
            signal = queues.listen(there)
            queues.wake(there, DAY)
            queues.unlisten(there, signal)
            assert len(queues._alarms) <= MAX_IDLE_QUEUES
            assert len(queues._armed) <= MAX_IDLE_QUEUES


@pytest.mark.anyio
async def test_of_several_hints_the_newest_counts() -> None:
    """A lease that was to end then has been given back, and the next one ends later."""
    async with connect("memory://") as locks:
        queues = locks._session.client.queues
        there = resource("order", 1)
        signal = queues.listen(there)
        for seconds in range(8 * MAX_IDLE_QUEUES):
            queues.wake(there, DAY + seconds)
            assert len(queues._alarms) <= MAX_IDLE_QUEUES
        queues.wake(there, 0.02)
        with anyio.fail_after(20):
            await signal.wait(DAY)
        queues.unlisten(there, signal)
