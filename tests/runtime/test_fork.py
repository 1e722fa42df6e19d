"""A forked child: whatever of its parent's runs on there sends nothing."""

from __future__ import annotations

import os

import anyio
import pytest

from aiorwlock_remote import Closed, Locks
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.runtime.fork import disable_in_children
from aiorwlock_remote.testing.faults import FaultyLink
from tests.forked_children import exit_code, fork

pytestmark = pytest.mark.anyio

NAME = "order", 1


async def test_every_client_is_severed_by_a_fork(locks: Locks) -> None:
    store = locks._session.client.store
    pid = fork()
    if pid == 0:
        refused = locks._session.client.store.step(resource(*NAME), Release("x"))
        os._exit(7 if isinstance(refused.error, Closed) else 1)
    assert exit_code(pid) == 7
    assert locks._session.client.store is store


async def test_a_fork_in_a_thread_without_a_loop_severs_waiting_clients_too(
    locks: Locks, near: Locks
) -> None:
    """So does a synchronous program, whose loop runs in another thread."""

    def both_refuse() -> bool:
        for client in (locks._session.client, near._session.client):
            refused = client.store.step(resource(*NAME), Release("x"))
            if not isinstance(refused.error, Closed):
                return False
        return True

    def child_code() -> int:
        pid = fork()
        if pid == 0:
            os._exit(7 if both_refuse() else 1)
        return exit_code(pid)

    async def wait(waiting: Locks, name: int) -> None:
        await waiting.mutex("order", name).acquire()

    async with (
        near.mutex("order", 2),
        locks.mutex("order", 3),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(wait, locks, 2)
        tasks.start_soon(wait, near, 3)
        await anyio.wait_all_tasks_blocked()
        assert await anyio.to_thread.run_sync(child_code) == 7
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
    pid = fork()
    if pid == 0:
        refused = locks._session.client.store.step(resource(*NAME), Release("x"))
        os._exit(7 if isinstance(refused.error, Closed) else 1)
    assert exit_code(pid) == 7


async def test_nothing_is_sent_by_what_waits_or_is_dropped(
    locks: Locks, near: Locks, link: FaultyLink
) -> None:
    """Releases, withdrawals and looks: of gates that were there, and of new ones."""
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
