"""A mutex set: taking, waiting, losing, and what may not be asked of it."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    Closed,
    ConfigurationError,
    Held,
    LockLost,
    LockTimeout,
    NotOwner,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import (
    KEY,
    QUEUE,
    STATE,
    Place,
    Server,
    proxies,
    requests,
    score,
    traces,
)
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(fresh_redis: RedisServer) -> Place:
    """Where the sets are; ``test_set_deployments`` has others."""
    return Place(fresh_redis, fresh_redis.url)


async def test_create_list_remove(place: Place) -> None:
    async with proxies(place) as pool:
        assert [await pool.create(name) for name in ("a", "b", "a")] == [1, 1, 0]
        assert score(place, "a") == 0
        assert sorted([name async for name in pool.list()]) == ["a", "b"]
        assert [await pool.remove(name) for name in ("a", "a")] == [True, False]
        assert [name async for name in pool.list()] == ["b"]


async def test_named_and_any(place: Place) -> None:
    async with proxies(place, "a", "b", "c") as pool:
        async with pool.acquire("b") as held:
            assert (held.name, held.resource) == ("b", f"{KEY}/b")
            assert held.fence == round((score(place, "b") or 0) * 1e6)
            first, second = await pool.acquire(), await pool.acquire(timeout=1)
            assert {first.name, second.name} == {"a", "c"}
            assert await pool.try_acquire() is None
            with pytest.raises(LockTimeout, match=KEY):
                await pool.acquire(timeout=0.05)
            with pytest.raises(WouldDeadlock):
                await pool.acquire("b")
            assert await pool.release(first)
            assert not await pool.release(first)
            async with pool.acquire() as third:
                assert third.name == first.name, "the only free one"
        assert await second.release()
    assert traces(place) == []


async def test_the_one_that_was_free_for_longest(start_redis: StartRedis) -> None:
    server = start_redis()
    server.ask("ZADD", KEY, 300, "c", 100, "a", 200, "b", -5, "never", "-inf", "nor")
    async with proxies(server) as pool:
        got = [await pool.acquire() for _ in range(3)]
        assert [held.name for held in got] == ["a", "b", "c"]
        assert await pool.try_acquire() is None, "negative scores are no times"
        got.append(await pool.acquire("never"))
        for held in got:
            assert await held.release()


async def test_update_gives_a_new_score_and_the_same_fence(
    place: Place,
) -> None:
    async with (
        proxies(place, "a") as pool,
        pool.acquire() as held,
    ):
        before, fence = score(place, "a"), held.fence
        await pool.update(held)
        assert (score(place, "a") or 0) > (before or 0)
        assert held.fence == fence
        await held.release()
        with pytest.raises(NotOwner):
            await pool.update(held)


async def test_objects_that_are_no_held_are_refused(place: Place) -> None:
    async with proxies(place, "a") as pool:
        for wrong in (None, "a", pool):
            for call in (pool.update, pool.release):
                with pytest.raises(ConfigurationError, match="is no Held"):
                    await call(wrong)  # type: ignore[arg-type]


async def test_a_forked_child_sends_nothing(place: Place) -> None:
    """What waits there is cancelled when the child ends, and withdrew its place."""
    async with proxies(place, "a") as pool, pool.acquire("a"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for, pool, "a")
            await eventually(lambda: place.ask("ZCARD", QUEUE) == 1, "it waits")
            pool._acquirer.sever()
            before = requests(place)
            tasks.cancel_scope.cancel()
        with pytest.raises(Closed, match="fork"):
            await pool.create("b")
        with pytest.raises(Closed, match="fork"):
            await pool.try_acquire("b")
        with pytest.raises(Closed, match="fork"):
            _ = [name async for name in pool.list()]
        assert requests(place) == before


async def wait_for(pool: MutexSet, name: str) -> None:
    async with pool.acquire(name):
        pytest.fail("it is taken")


async def test_fences_rise_and_scores_are_never_equal(
    place: Place,
) -> None:
    async with proxies(place, "a") as pool:
        fences: list[int] = []
        for _ in range(200):
            async with pool.acquire("a") as held:
                fences.append(held.fence)
        assert fences == sorted(set(fences))
        assert all(fence % 1_000_000 for fence in fences), "never a whole second"
        ahead = (int(time.time()) + 5) * 1_000_000
        place.ask("HSET", STATE, "last", ahead - 1)
        async with pool.acquire("a") as held:
            assert held.fence == ahead + 1, "the clock was set back; no whole second"


async def test_release_that_removes(place: Place) -> None:
    async with proxies(place, "a", "b") as pool:
        held = await pool.acquire("a")
        assert await pool.release(held, remove=True)
        assert score(place, "a") is None
        assert not await pool.release(held, remove=True)
    assert traces(place) == []


async def test_waiters_of_a_mutex_set_are_woken_at_once(place: Place) -> None:
    """Released by another process, created, removed while held and created."""
    seldom = proxies(place, revalidate_seconds=300)
    async with proxies(place, "a") as one, seldom as two:
        got: list[str] = []

        async def wait(name: str | None) -> None:
            async with two.acquire(name, timeout=30) as held:
                got.append(held.name)

        for name in ("a", None):
            held = await one.acquire("a")
            async with anyio.create_task_group() as group:
                group.start_soon(wait, name)
                await queued(place, 1)
                await held.release()
            assert got[-1] == "a"
        async with anyio.create_task_group() as group:
            group.start_soon(wait, "new")
            await queued(place, 1)
            await one.create("new")
        assert got[-1] == "new"
    assert traces(place) == []


async def queued(server: Server, count: int) -> None:
    await eventually(lambda: server.ask("ZCARD", QUEUE) == count, "somebody waits")


async def test_first_come_first_served(place: Place) -> None:
    """Among processes by place, inside one by order; a newcomer does not pass."""
    async with proxies(place, "a") as one, proxies(place) as two:
        held = await one.acquire()
        order: list[str] = []

        async def wait(pool: Any, who: str) -> None:  # noqa: ANN401
            async with pool.acquire():
                order.append(who)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, two, "first")
            await queued(place, 1)
            group.start_soon(wait, one, "second")
            await queued(place, 2)
            group.start_soon(wait, one, "third")
            await anyio.wait_all_tasks_blocked()
            await held.release()
            assert await one.try_acquire() is None, "others come first"
        assert order == ["first", "second", "third"]


async def test_named_and_any_wait_together(place: Place) -> None:
    """Who wants any does not take what is called for by name, if he came later."""
    async with proxies(place, "a", "b") as one, proxies(place) as two:
        a, b = await one.acquire("a"), await one.acquire("b")
        got: dict[str, str] = {}

        async def wait(name: str | None, who: str) -> None:
            async with two.acquire(name) as held:
                got[who] = held.name
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, "a", "named")
            await queued(place, 1)
            group.start_soon(wait, None, "any")
            await queued(place, 2)
            await a.release()
            await eventually(lambda: "named" in got, "got it")
            await b.release()
        assert got["named"] == "a"


async def test_closing_ends_waiting_and_gives_back(place: Place) -> None:
    async with proxies(place, "a") as other:
        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as group:
                locks = await connect(place.store)
                pool = locks.mutex_set(KEY)
                held = await pool.acquire()

                async def wait() -> Held:
                    return await pool.acquire()

                group.start_soon(wait)
                await queued(place, 1)
                await locks.aclose()
        assert caught.group_contains(Closed)
        async with other.acquire(timeout=1) as next_one:
            assert next_one.name == held.name
        with pytest.raises(Closed):
            await pool.create("b")


async def test_closing_takes_back_a_try_under_way(place: Place) -> None:
    """It gets the error, and the mutex is free for others."""
    async with proxies(place, "a") as other:
        locks = await connect(place.store)
        errors: list[BaseException] = []

        async def tries() -> None:
            try:
                await locks.mutex_set(KEY).try_acquire()
            except Closed as exc:
                errors.append(exc)

        async with anyio.create_task_group() as group:
            group.start_soon(tries)
            await checkpoint()
            await locks.aclose()
        assert [type(error) for error in errors] == [Closed]
        held = await other.try_acquire()
        assert held is not None
        await held.release()


# ------------------------------------------------------------------------------
# The queue of a mutex set: who comes first, and who waits for what is not there.


async def test_places_nobody_looks_after_are_dropped(fresh_redis: RedisServer) -> None:
    """A process that died long ago does not stand before anybody."""
    now = int(time.time() * 1e6)
    async with proxies(fresh_redis, "a") as pool:
        for number, expires in enumerate((now - 1, now + 60_000_000), 1):
            place = f"dead.{number},"
            fresh_redis.ask("ZADD", QUEUE, number, place)
            fresh_redis.ask("HSET", STATE, f"p{place}", f"{expires},")
        assert await pool.try_acquire() is None, "one of them may live"
        assert fresh_redis.ask("ZRANGE", QUEUE, 0, -1) == [b"dead.2,"]
        async with pool.acquire(timeout=3) as held:
            assert held.name == "a", "it was called and did not come"
        fresh_redis.ask("DEL", QUEUE)
        fresh_redis.ask("HDEL", STATE, "pdead.2,")
    assert traces(fresh_redis) == []


def stands(server: RedisServer, target: str) -> None:
    """A live process waits there, and is slow to come."""
    until = int(time.time() * 1e6) + 60_000_000
    place = f"slow.{server.ask('ZCARD', QUEUE)},{target}"
    server.ask("ZADD", QUEUE, server.ask("ZCARD", QUEUE), place)
    server.ask("HSET", STATE, f"p{place}", f"{until},")


@pytest.mark.parametrize(
    ("ahead", "wanted", "got"),
    [
        (["a"], None, "b"),  # what is waited for by name is left alone
        (["a", "b"], None, "c"),
        (["a", "a", ""], None, "b"),  # the other one who wants any gets c
        (["", "a", "b"], None, None),
        (["a"], "a", None),
        (["b"], "a", "a"),
        (["", ""], "c", "c"),  # who wants any has enough of them
        (["", "", ""], "c", None),
        (["gone"], None, "a"),  # it is not to be had
    ],
)
async def test_the_order_of_the_queue_of_a_set(
    fresh_redis: RedisServer, ahead: list[str], wanted: str | None, got: str | None
) -> None:
    async with proxies(fresh_redis, "a", "b", "c") as pool:
        for target in ahead:
            stands(fresh_redis, target)
        held = await pool.try_acquire(wanted)
        assert (None if held is None else held.name) == got
        if held is not None:
            assert await held.release()


@pytest.mark.parametrize("name", ["a", None])
async def test_removed_while_it_is_waited_for(
    fresh_redis: RedisServer, name: str | None
) -> None:
    """A waiter gets it once it is created again; its holder learns of the loss."""
    async with (
        proxies(fresh_redis, "a") as pool,
        proxies(fresh_redis, revalidate_seconds=60) as other,
    ):
        held = await pool.acquire("a")
        got: list[int] = []

        async def wait() -> None:
            async with other.acquire(name) as mine:
                got.append(mine.fence)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "waits")
            assert await pool.remove("a")
            assert await other.try_acquire() is None
            with pytest.raises(LockLost) as caught:
                await pool.update(held)
            assert caught.value.reason == "forced"
            assert got == []
            assert await pool.create("a")
        assert got > [held.fence]
    assert traces(fresh_redis) == []


@pytest.mark.parametrize("name", ["a", None])
async def test_released_and_removed_while_it_is_waited_for(
    fresh_redis: RedisServer, name: str | None
) -> None:
    """The one who waits for it by name waits on, the one for any takes another."""
    async with proxies(fresh_redis, "a", "b") as pool, proxies(fresh_redis) as other:
        a, b = await pool.acquire("a"), await pool.acquire("b")
        got: list[str] = []

        async def wait() -> None:
            async with other.acquire(name) as mine:
                got.append(mine.name)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "waits")
            assert await pool.release(a, remove=True)
            assert got == []
            assert await pool.release(b)
            if name is not None:
                assert await pool.create("a")
        assert got == [name or "b"]
    assert traces(fresh_redis) == []
