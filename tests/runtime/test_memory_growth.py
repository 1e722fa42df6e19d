"""A process that uses new names for months has no more of anything than on day one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from aiorwlock_remote import LockLost, Locks, LockTimeout, connect
from aiorwlock_remote.backends import memory
from aiorwlock_remote.backends.redis import store as redis_store
from aiorwlock_remote.core import names
from aiorwlock_remote.core.names import cached_resource
from aiorwlock_remote.embedded import connection
from aiorwlock_remote.runtime import deadline_queue, wait_queue
from tests.runtime.growth import counted, grown
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.no_uvloop("no loop has a part in it")

CYCLES = 8
BRIEF = 0.002
PATIENCE = 20.0
DAY = 86_400.0
NAMES = count()


@pytest.fixture(autouse=True)
def _small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded has reached its bound in a few cycles."""
    monkeypatch.setattr(deadline_queue, "MAX_EMPTY_SLOTS", 4)
    monkeypatch.setattr(memory, "SWEEP_EVERY", 4)
    monkeypatch.setattr(redis_store, "CACHE_SIZE", 4)
    monkeypatch.setattr(wait_queue, "MAX_IDLE_QUEUES", 4)
    monkeypatch.setattr(connection, "DECODE_CACHE_SIZE", 4)
    for number in range(names.CACHE_SIZE):
        assert cached_resource("filled", f"n{number}").row


ENOUGH = "the stores differ, not the loops"
STORES = (
    "memory",
    pytest.param("sqlite", marks=pytest.mark.only_on("asyncio", ENOUGH)),
    pytest.param("redis", marks=pytest.mark.only_on("trio", ENOUGH)),
)


@pytest.fixture(params=STORES)
def url(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> str:
    return {
        "memory": f"memory://{tmp_path.name}",
        "sqlite": f"sqlite:///{tmp_path}/locks.db",
        "redis": redis_server.url,
    }[request.param]


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Locks, Locks]]:
    """Two processes; what nobody uses is forgotten at once."""
    async with (
        connect(url, fence_memory=0.001) as locks,
        connect(url, fence_memory=0.001) as others,
    ):
        yield locks, others


async def grants(locks: Locks, others: Locks, name: str) -> None:
    """Held and given back, in all ways; moved, passed on, lost."""
    async with locks.mutex("order", name, lease=None, max_hold=DAY).acquire() as held:
        held.check()
        await held.extend()
        assert await others.mutex("order", name).try_acquire() is None
        assert await others.mutex("order", name).locked()
    lock = locks.rwlock("order", name)
    async with lock.reader:
        pass
    async with lock.writer.acquire(reason=name) as writer:
        reader = await writer.downgrade()
        await reader.upgrade()
    given = await lock.writer.acquire(lease=DAY)
    taken = await others.adopt(given.detach())
    await taken.release()
    async with locks.multi(lock.writer, locks.mutex("bill", name)):
        pass
    with suppress(LockLost):
        async with lock.writer.acquire() as held:
            seen = await others.mutex("order", name).info()
            await others.force_release(seen, reason="growth")
            await held.extend()


async def waits(locks: Locks, others: Locks, name: str) -> None:
    """In vain for a time, cancelled at several points, and at last let in."""

    async def in_vain() -> None:
        with suppress(LockTimeout):
            async with others.mutex("order", name).acquire(BRIEF):
                pass

    async def reads() -> None:
        async with others.rwlock("order", name).reader:
            pass

    async with locks.mutex("order", name, lease=DAY):
        await in_vain()
        for checkpoints in range(4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reads)
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks, locks.mutex("order", name):
        tasks.start_soon(in_vain)
        tasks.start_soon(reads)
        await anyio.sleep(BRIEF)


async def opens(url: str) -> None:
    """Opened, used, and closed under whoever waits; or cancelled meanwhile."""
    for checkpoints in (None, next(NAMES) % 8):
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                async with connect(url, fence_memory=0.001) as locks:
                    async with locks.mutex("order", f"n{next(NAMES)}"):
                        pass
                    held = await locks.mutex("order", f"n{next(NAMES)}").acquire()
                assert not held.valid

            tasks.start_soon(use)
            if checkpoints is not None:
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()


async def growth(cycle: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """By how much of what, after so many cycles to warm up and twice as many.

    What is about to end may take its time.
    """
    for _ in range(CYCLES):
        await cycle()
    before = counted()
    for _ in range(2 * CYCLES):
        await cycle()
    with anyio.move_on_after(PATIENCE):
        while more := grown(before, counted(), least=2 * CYCLES):  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.1)
    return more


@pytest.mark.anyio
@pytest.mark.parametrize("way", [grants, waits])
async def test_new_names_leave_nothing(
    pair: tuple[Locks, Locks], way: Callable[[Locks, Locks, str], Awaitable[None]]
) -> None:
    async def cycle() -> None:
        await way(*pair, f"n{next(NAMES)}")

    assert await growth(cycle) == {}


@pytest.mark.anyio
async def test_locks_opened_anew_leave_nothing(url: str) -> None:
    assert await growth(lambda: opens(url)) == {}


@pytest.mark.anyio
async def test_growing_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queue.WaitQueueRegistry, "_sweep", lambda _: None)
    monkeypatch.setattr("tests.runtime.test_memory_growth.PATIENCE", 0)
    async with connect("memory://growing") as locks:

        async def cycle() -> None:
            async with locks.mutex("order", f"n{next(NAMES)}"):
                pass

        found = await growth(cycle)
    assert found["WaitQueueRegistry._queues"] == found["WaitQueue"] == 2 * CYCLES


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_loop_after_the_other_leaves_nothing(tmp_path: Path, backend: str) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"

    async def cycle() -> None:
        await anyio.to_thread.run_sync(lambda: anyio.run(opens, url, backend=backend))

    assert anyio.run(growth, cycle) == {}
