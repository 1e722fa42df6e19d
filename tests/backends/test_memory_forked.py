"""``memory://`` in a forked child: empty, whatever its parent was doing."""

from __future__ import annotations

import os
import signal
import threading

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.backends import memory
from tests.forked_children import exit_code, fork

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("no loop has a part in it")]

PATIENCE = 10


async def test_a_forked_child_has_no_grants_of_its_parent() -> None:
    async with connect("memory://forked") as locks, locks.mutex("order", 1):
        assert child_gets_it()
        assert await locks.mutex("order", 1).locked()


async def test_another_thread_was_in_the_middle_of_a_step() -> None:
    async with connect("memory://forked") as locks:
        store = locks._session.client.store
        assert isinstance(store, memory.MemoryStore)
        with store._database.lock, memory._databases_lock:
            assert child_gets_it()


def child_gets_it() -> bool:
    pid = fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has its own
        signal.alarm(PATIENCE)
        got: list[bool] = []
        try:  # in a thread: this one runs the parent's loop
            thread = threading.Thread(target=lambda: got.append(anyio.run(gets_it)))
            thread.start()
            thread.join()
        finally:
            os._exit(0 if got == [True] else 1)
    return exit_code(pid) == 0


async def gets_it() -> bool:
    async with connect("memory://forked") as locks:
        return await locks.mutex("order", 1).try_acquire() is not None
