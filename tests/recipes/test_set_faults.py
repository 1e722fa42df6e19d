"""Mutex sets when something goes wrong: cancellations, lost connections, big sets."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.mutex_set import TakeReplies, TakeRequest
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, QUEUE, proxies, traces
from tests.runtime.cancel_at import CancelAt
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("way", ["free", "waits", "tries"])
async def test_cancelled_anywhere(
    fresh_redis: RedisServer, way: str, *, late: bool
) -> None:
    """At each suspension of acquire, hold and release: nothing stays behind."""
    async with proxies(fresh_redis, "a") as pool, proxies(fresh_redis) as other:

        async def use(name: str | None) -> None:
            if way == "tries":
                held = await pool.try_acquire(name)
                if held is not None:
                    await held.release()
                return
            async with pool.acquire(name):
                await anyio.lowlevel.checkpoint()

        for name in ("a", None):
            for k in range(1, 40):
                holder = await other.acquire("a") if way == "waits" else None
                done = CancelAt(use(name), k, lambda: scope.cancel(), late=late)  # noqa: PLW0108
                async with anyio.create_task_group() as group:
                    with anyio.CancelScope() as scope:
                        if holder is not None:
                            group.start_soon(holder.release)
                        await done
                async with other.acquire("a", timeout=5):
                    pass
                await eventually(lambda: traces(fresh_redis) == [], "nothing stays")
                if done.suspensions < k:
                    break
            else:
                pytest.fail("it never ends")


async def test_cancelled_while_it_waits(fresh_redis: RedisServer) -> None:
    async with proxies(fresh_redis, "a") as pool, proxies(fresh_redis) as other:
        held = await other.acquire("a")
        for name in ("a", None):
            with anyio.move_on_after(0.1):
                await pool.acquire(name)
            await eventually(
                lambda: fresh_redis.ask("ZCARD", QUEUE) == 0, "no place is left"
            )
        assert await held.release()
    await eventually(lambda: traces(fresh_redis) == [], "nothing stays")


async def test_the_next_in_line_takes_over_from_who_gave_up(
    fresh_redis: RedisServer,
) -> None:
    """The place stays while others of the process wait; nobody is forgotten."""
    async with proxies(fresh_redis, "a") as pool, proxies(fresh_redis) as other:
        held = await other.acquire()
        got = anyio.Event()

        async def patient() -> None:
            async with pool.acquire():
                got.set()

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(0.2):
                async with anyio.create_task_group() as inner:
                    inner.start_soon(pool.acquire().__aenter__)
                    await eventually(
                        lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "queued"
                    )
                    group.start_soon(patient)
            await held.release()
            with anyio.fail_after(1):
                await got.wait()


async def test_the_last_in_line_gives_up_while_the_first_asks(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place that was kept for him goes, too."""
    async with proxies(fresh_redis, "a") as pool, proxies(fresh_redis) as other:
        held = await other.acquire()
        members, scope = pool._acquirer.members, anyio.CancelScope()
        really = members.ask

        def ask(asks: Sequence[TakeRequest], entry_ttl: float) -> Pending[TakeReplies]:
            if asks[0].more:
                scope.cancel()
            return really(asks, entry_ttl)

        monkeypatch.setattr(members, "ask", ask)

        async def first() -> None:
            async with pool.acquire():
                pass

        async def last() -> None:
            with scope:
                await pool.acquire()

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await eventually(lambda: fresh_redis.ask("ZCARD", QUEUE) == 1, "queued")
            group.start_soon(last)
            await anyio.wait_all_tasks_blocked()
            await held.release()
        await eventually(lambda: traces(fresh_redis) == [], "nothing stays", 2)
        assert scope.cancelled_caught


async def test_a_waiter_survives_a_lost_connection(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with proxies(server, "a") as other, connect(proxy.url) as locks:
            pool = locks.mutex_set(KEY)
            held = await other.acquire()
            got: list[str] = []

            async def wait() -> None:
                async with pool.acquire() as mine:
                    got.append(mine.name)

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await eventually(lambda: server.ask("ZCARD", QUEUE) == 1, "queued")
                proxy.cut()
                await held.release()
                await eventually(lambda: got == ["a"], "got it", 8)
    assert traces(server) == []


async def test_a_dead_waiter_is_passed_over(start_redis: StartRedis) -> None:
    """Who was called and does not come costs the others a poll, no more."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with (
            proxies(server, "a") as holder,
            proxies(server) as other,
            connect(proxy.url) as locks,
        ):
            held = await holder.acquire()
            dead = locks.mutex_set(KEY)
            async with anyio.create_task_group() as group:
                group.start_soon(dead.acquire().__aenter__)
                await eventually(lambda: server.ask("ZCARD", QUEUE) == 1, "queued")
                proxy.black_hole(on=True)
                waiting = other.acquire(timeout=8)  # before the dead one's place ends

                async def wait() -> None:
                    async with waiting:
                        group.cancel_scope.cancel()

                group.start_soon(wait)
                await eventually(lambda: server.ask("ZCARD", QUEUE) == 2, "queued")
                await held.release()
                await anyio.sleep_forever()
            proxy.cut()
