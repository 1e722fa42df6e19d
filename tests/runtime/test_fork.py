"""A forked child: whatever of its parent's runs on there sends nothing."""

from __future__ import annotations

import os

import anyio
import pytest

from aiorwlock_remote import Closed, Locks
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.runtime.fork import ForkedStore, disable_in_children
from aiorwlock_remote.runtime.wait_queue import Attempt
from aiorwlock_remote.testing.faults import FaultyLink
from tests.forked_children import exit_code, fork

pytestmark = pytest.mark.anyio

NAME = "order", 1


def code_of_child(*opened: Locks) -> int:
    """Fork; 7 if every client refuses a request in the child, else 1."""
    pid = fork()
    if pid == 0:
        for one in opened:
            refused = one._session.client.store.step(resource(*NAME), Release("x"))
            if not isinstance(refused.error, Closed):
                os._exit(1)
        os._exit(7)
    return exit_code(pid)


async def test_every_client_is_severed_by_a_fork(locks: Locks) -> None:
    store = locks._session.client.store
    assert code_of_child(locks) == 7
    assert locks._session.client.store is store


async def test_a_fork_in_a_thread_without_a_loop_severs_waiting_clients_too(
    locks: Locks, near: Locks
) -> None:
    """So does a synchronous program, whose loop runs in another thread."""

    async def wait(waiting: Locks, name: int) -> None:
        await waiting.mutex("order", name).acquire()

    async with (
        near.mutex("order", 2, lease=60),
        locks.mutex("order", 3, lease=60),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(wait, locks, 2)
        tasks.start_soon(wait, near, 3)
        await anyio.wait_all_tasks_blocked()
        assert await anyio.to_thread.run_sync(code_of_child, locks, near) == 7
        tasks.cancel_scope.cancel()


async def test_a_client_that_cannot_be_severed_spares_the_others_nothing(
    locks: Locks,
) -> None:
    class Failing:
        def sever(self) -> None:
            raise ValueError

    failing = [Failing() for _ in range(20)]  # some come before ``locks``, some after
    for sender in failing:
        disable_in_children(sender)
    assert code_of_child(locks) == 7


async def test_an_acquire_prepared_before_the_fork_sends_nothing(locks: Locks) -> None:
    lock, client = locks.mutex(*NAME), locks._session.client
    for _ in range(2):  # the second one is prepared
        async with lock:
            pass
    attempt = Attempt(client.claim(lock._request), lock._request, 0.0, 0.0)
    pid = fork()
    if pid == 0:
        client.queues.queue(resource(*NAME)).ask_alone(attempt)
        waiter = attempt.waiter
        os._exit(7 if waiter is not None and isinstance(waiter.error, Closed) else 1)
    assert exit_code(pid) == 7


async def test_what_only_some_stores_can_is_closed_as_well(locks: Locks) -> None:
    """And not said to be missing: the store could it before the fork."""
    store = ForkedStore(locks._session.client.store)
    members = store.members("set", lambda _: None)
    for refused in (store.carry(iter(())), members.create("member", 1)):
        assert isinstance(refused.error, Closed)
    with pytest.raises(Closed):
        store.occupations("p:%s", "u:%s", None)
    with pytest.raises(Closed):
        _ = store.dialect
    with pytest.raises(Closed):
        await store.join(resource(*NAME), "x", None)
    with pytest.raises(Closed):
        await store.joined(resource(*NAME), "x")


async def test_a_forked_child_sends_nothing_for_waiters_and_dropped_locks(
    locks: Locks, near: Locks, link: FaultyLink
) -> None:
    """Releases, withdrawals and reads: of queues that were there, and of new ones."""
    held = await locks.mutex(*NAME).acquire()

    async def wait() -> None:
        await locks.mutex("order", 2).acquire()

    async with near.mutex("order", 2), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        before, client = len(link.sent), locks._session.client
        store = client.store
        client.sever()
        client.release(held._state.lease).log_failure()
        client.queues.queue(resource("order", 3)).release("x").log_failure()
        tasks.cancel_scope.cancel()
    assert len(link.sent) == before
    client.store = store
    assert await near.mutex(*NAME).try_acquire() is None
    assert await held.release()
