"""Mutex sets when something goes wrong: cancellations, lost connections, big sets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, connect
from aiorwlock_remote.core.pool import Ask, Told, Took
from aiorwlock_remote.pending import Pending
from tests.backends.redis.linking import eventually
from tests.recipes.fix_sets import KEY, QUEUE, proxies, score, traces
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
        members, scope = pool._pool.members, anyio.CancelScope()
        really = members.ask

        def ask(asks: Sequence[Ask], place_life: float) -> Pending[Told]:
            if asks[0].more:
                scope.cancel()
            return really(asks, place_life)

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


async def test_a_lost_answer(start_redis: StartRedis) -> None:
    """The script ran, its answer was lost: the ticket gives it back."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=2) as locks:
            pool = locks.mutex_set(KEY)
            await pool.create("a")
            for wait in (0, 5):
                proxy.cut_after(1, to="client")
                with pytest.raises(BackendUnavailable):
                    await pool.acquire(timeout=wait)
                await eventually(lambda: score(server, "a") == 0, "given back")
            held = await pool.acquire(timeout=5)
            assert await held.release()


async def test_a_ticket_that_asks_again_has_it(fresh_redis: RedisServer) -> None:
    """Its answer was lost: the lease counts from the new one, and nothing is given."""
    async with proxies(fresh_redis, "a", "b") as pool:
        members, ask = pool._pool.members, Ask("", "ticket", 60_000_000)
        (first,) = (await members.ask((ask,), 0.0)).answers
        (again,) = (await members.ask((ask,), 0.0)).answers
        assert isinstance(first, Took)
        assert isinstance(again, Took)
        assert first.name == again.name
        assert again.fence / 1e6 == score(fresh_redis, again.name)
        assert again.fence > first.fence
        await members.withdraw((), ("ticket",), 60_000_000)
    assert traces(fresh_redis) == []


async def test_nobody_says_whether(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=1) as locks:
            pool = locks.mutex_set(KEY)
            await pool.create("a")
            proxy.refuse()
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain):
                await pool.acquire()
            proxy.accept()
            await eventually(lambda: score(server, "a") == 0, "given back late")


async def test_nobody_says_whether_in_time(start_redis: StartRedis) -> None:
    """Told when the caller's time is up, however long the server may be away."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=60) as locks:
            pool = locks.mutex_set(KEY)
            await pool.create("a")
            proxy.refuse()
            proxy.cut_after(1, to="client")
            with anyio.fail_after(20), pytest.raises(AcquireUncertain):
                await pool.acquire(timeout=1)
            proxy.accept()
            await eventually(lambda: score(server, "a") == 0, "given back late")


@pytest.mark.parametrize("closed", [False, True])
async def test_a_release_that_failed_is_asked_again(
    start_redis: StartRedis, *, closed: bool
) -> None:
    """In the background, and once more when it is closed."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=2) as locks:
            pool = locks.mutex_set(KEY, lease=60)
            await pool.create("a")
            held = await pool.acquire()
            proxy.refuse()
            proxy.cut()
            with pytest.raises(BackendUnavailable):
                await held.release()
            assert score(server, "a") != 0
            proxy.accept()
            if not closed:
                await eventually(lambda: score(server, "a") == 0, "given back")
    assert score(server, "a") == 0


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("timeout", [0, 5])
async def test_what_could_not_be_taken_back_is_taken_back_later(
    start_redis: StartRedis, name: str | None, timeout: float
) -> None:
    """Cancelled while its answer is on the way, and nothing gets through."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with connect(proxy.url, connect_timeout=2) as locks:
            pool = locks.mutex_set(KEY, lease=60)
            await pool.create("a")
            proxy.mute()
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    await pool.acquire(name, timeout=timeout)

                group.start_soon(wait)
                await eventually(lambda: (score(server, "a") or 0) > 0, "granted")
                proxy.refuse()
                proxy.cut()
                group.cancel_scope.cancel()
            assert (score(server, "a") or 0) > 0
            proxy.accept()
            await eventually(lambda: score(server, "a") == 0, "given back")


@pytest.mark.only_on("asyncio", "elsewhere who is turned away is told of that")
async def test_turned_away_and_cancelled_at_once(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given one, and the answer was lost."""
    async with proxies(fresh_redis, "a") as pool:
        members, tasks = pool._pool.members, list[asyncio.Task[object]]()
        really = members.ask

        def ask(asks: Sequence[Ask], place_life: float) -> Pending[Told]:
            lost: Pending[Told] = Pending()

            def lose(_: Pending[Told]) -> None:
                lost.fail(BackendUnavailable(what="lost"))
                tasks[0].cancel()

            really(asks, place_life).then(lose)
            return lost

        monkeypatch.setattr(members, "ask", ask)
        tasks.append(asyncio.create_task(pool.acquire()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await eventually(lambda: score(fresh_redis, "a") == 0, "given back")


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
                waiting = other.acquire(timeout=3)

                async def wait() -> None:
                    async with waiting:
                        group.cancel_scope.cancel()

                group.start_soon(wait)
                await eventually(lambda: server.ask("ZCARD", QUEUE) == 2, "queued")
                started = anyio.current_time()
                await held.release()
                await anyio.sleep_forever()
            assert anyio.current_time() - started < 2.5
            proxy.cut()
