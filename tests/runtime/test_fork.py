"""A forked child: whatever of its parent's runs on there sends nothing."""

from __future__ import annotations

import os

import anyio
import pytest

from aiorwlock_remote import Closed, Locks
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.testing.faults import FaultyLink
from tests.forked_children import exit_code, fork

pytestmark = pytest.mark.anyio

NAME = "order", 1


async def test_every_drive_is_severed_by_a_fork(locks: Locks) -> None:
    store = locks._session.client.store
    pid = fork()
    if pid == 0:
        refused = locks._session.client.store.step(resource(*NAME), Release("x"))
        os._exit(7 if isinstance(refused.error, Closed) else 1)
    assert exit_code(pid) == 7
    assert locks._session.client.store is store


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
