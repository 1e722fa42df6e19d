"""The rights that the documentation says a user needs: enough, and none too many."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from aiorwlock_remote import LockTimeout, Mutex, Semaphore, connect
from aiorwlock_remote.errors import BackendError
from tests.backends.redis.rights import objects, rules, user
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]

QUEUE = "{mutex_locks/a,1}.queue"
PERMIT_QUEUE = "{mutex_locks/b%semaphore,1}.queue"


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


async def everything(server: RedisServer, url: str) -> None:
    """What a program does with locks, every kind of step."""
    async with connect(url) as one, connect(url) as two, connect(url) as three:
        mutex, other = one.mutex("a", 1, lease=None), two.mutex("a", 1)
        async with mutex:
            with pytest.raises(LockTimeout):
                await other.acquire(timeout=0.05)
            assert (await two.mutex("a", 1).info()).locked
        async with anyio.create_task_group() as tasks, mutex:
            tasks.start_soon(_use, other)
            await wait_until(lambda: server.ask("ZCARD", QUEUE) == 1)
        server.ask("SCRIPT", "FLUSH")
        async with mutex:
            pass
        both, theirs = one.rwlock("b", 1), two.rwlock("b", 1)
        first = await both.reader.acquire()
        second = await theirs.reader.acquire(lease=60)
        await first.extend()
        with pytest.raises(LockTimeout):
            await three.mutex("b", 1).acquire(timeout=0.05)
        await first.release()
        written = await second.upgrade(timeout=1)
        await (await written.downgrade()).release()
        one_permit, their_permit = (
            locks.semaphore("b", 1, limit=1, lease=lease)
            for locks, lease in ((one, None), (two, 60))
        )
        async with anyio.create_task_group() as tasks, one_permit:
            tasks.start_soon(_use, their_permit)
            await wait_until(lambda: server.ask("ZCARD", PERMIT_QUEUE) == 1)
        await one.acquire_readers_lock("c", 1, "gone", lease=0.2)
        async with two.rwlock("c", 1).writer.acquire(timeout=5):
            pass


async def _use(lock: Mutex | Semaphore) -> None:
    async with lock:
        pass


async def wait_until(come: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not come():  # noqa: ASYNC110 - the server does not tell
            await anyio.sleep(0.005)


async def test_the_documented_rights_are_enough(server: RedisServer) -> None:
    with user(server, rules()) as url:
        await everything(server, url)
    assert objects(server) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.parametrize("right", [r for r in rules() if r.startswith("+")])
async def test_none_of_them_is_too_many(server: RedisServer, right: str) -> None:
    without = [rule for rule in rules() if rule != right]
    with user(server, without) as url:
        try:
            await everything(server, url)
        except (BackendError, ExceptionGroup):
            return
    assert right[1:].encode() in objects(server)
