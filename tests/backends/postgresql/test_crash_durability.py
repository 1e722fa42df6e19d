"""What need not be on the disk, and what a crash may take back."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Locks, connect
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.backends.postgresql.notices import LOUD, log_of, queued, swaps, take
from tests.servers.fix_postgresql import StartPostgresql
from tests.servers.postgresql import Postgresql

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


@pytest.fixture
def server(start_postgresql: StartPostgresql) -> Postgresql:
    return start_postgresql(config=LOUD)


async def test_only_a_release_need_not_wait_for_the_disk(server: Postgresql) -> None:
    """And only where what a crash takes back ends by itself."""

    def lazy() -> int:
        return log_of(server).count("set_config('synchronous_commit', 'off'")

    async with connect(server.url) as locks:
        held = await locks.mutex("order", 1).acquire()
        await held.extend()
        assert lazy() == 0
        assert await held.release()
        assert lazy() == 1
        for_ever = await locks.mutex("order", 1, lease=None).acquire()
        assert await for_ever.release()
        assert lazy() == 1


async def test_nor_does_who_queues_up(server: Postgresql) -> None:
    """Nothing is held by a place, and who waits for it asks again."""
    async with connect(server.url) as locks, connect(server.url) as others:
        held = await others.mutex("order", 1, lease=None).acquire()
        before = len(swaps(server))
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await wait_until(partial(queued, others), 5)
            made, *steps = swaps(server)[before:]
            assert not made  # a guess: that nobody has been there
            assert steps
            assert all(steps)  # to queue up, and to keep the place
            await held.release()


async def test_a_queued_client_acquires_after_a_crash(server: Postgresql) -> None:
    """Whether the place was on the disk or not."""
    async with (
        connect(server.url, connect_timeout=20) as locks,
        connect(server.url, connect_timeout=20) as others,
    ):
        held = await others.mutex("order", 1, lease=60).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(take, locks)
            await wait_until(partial(queued, others), 5)
            server.restart()  # kill -9
            await wait_until(partial(answers, others), 20)
            assert await held.release()


async def test_a_crash_gives_nobody_a_lock_twice(server: Postgresql) -> None:
    """Whatever it takes back: who came in since stays in."""
    async with connect(server.url, connect_timeout=20) as locks:
        first = await locks.mutex("order", 1, lease=60).acquire()
        assert await first.release()
        second = await locks.mutex("order", 1, lease=60).acquire()
        released = await locks.mutex("order", 2, lease=3).acquire()
        assert await released.release()
        server.restart()  # kill -9
        await wait_until(partial(answers, locks), 20)
        assert (await locks.mutex("order", 1).info()).holders[0].holder == second.holder
        async with locks.mutex("order", 2).acquire(timeout=20) as held:
            assert held.fence > released.fence
        assert await second.release()


async def answers(locks: Locks) -> bool:
    with suppress(BackendUnavailable):
        await locks.mutex("order", 3).info()
        return True
    return False
