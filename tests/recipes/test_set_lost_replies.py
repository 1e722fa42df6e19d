"""Mutex sets whose requests or answers are lost: nothing stays with no one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.mutex_set import Taken, TakeReplies, TakeRequest
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, proxies, score, traces
from tests.servers.fix_redis import StartRedis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def behind(
    proxy: Proxy, connect_timeout: float, lease: float = 30
) -> AsyncIterator[MutexSet]:
    """A set with one mutex, reached through the proxy."""
    async with connect(proxy.url, connect_timeout=connect_timeout) as locks:
        pool = locks.mutex_set(KEY, lease=lease)
        await pool.create("a")
        yield pool


async def test_a_lost_answer(start_redis: StartRedis) -> None:
    """The script ran, its answer was lost: the ticket gives it back."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with behind(proxy, 2) as pool:
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
        members, ask = pool._acquirer.members, TakeRequest("", "ticket", 60_000_000)
        (first,) = (await members.ask((ask,), 0.0)).answers
        (again,) = (await members.ask((ask,), 0.0)).answers
        assert isinstance(first, Taken)
        assert isinstance(again, Taken)
        assert first.name == again.name
        assert again.fence / 1e6 == score(fresh_redis, again.name)
        assert again.fence > first.fence
        await members.withdraw((), ("ticket",), 60_000_000)
    assert traces(fresh_redis) == []


async def test_an_acquire_with_an_unknown_outcome(start_redis: StartRedis) -> None:
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with behind(proxy, 1) as pool:
            proxy.refuse()
            proxy.cut_after(1, to="client")
            with pytest.raises(AcquireUncertain):
                await pool.acquire()
            proxy.accept()
            await eventually(lambda: score(server, "a") == 0, "given back late")


async def test_an_acquire_with_an_unknown_outcome_at_its_timeout(
    start_redis: StartRedis,
) -> None:
    """The error comes at the caller's timeout, however long the server may be away."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with behind(proxy, 60) as pool:
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
        async with behind(proxy, 2, lease=60) as pool:
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
async def test_a_failed_withdrawal_is_repeated_later(
    start_redis: StartRedis, name: str | None, timeout: float
) -> None:
    """Cancelled while its answer is on the way, and nothing gets through."""
    server = start_redis()
    with Proxy(server.port) as proxy:
        async with behind(proxy, 2, lease=60) as pool:
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


@pytest.mark.only_on("asyncio", "elsewhere a refused caller gets the refusal")
async def test_turned_away_and_cancelled_at_once(
    fresh_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given one, and the answer was lost."""
    async with proxies(fresh_redis, "a") as pool:
        members, tasks = pool._acquirer.members, list[asyncio.Task[object]]()
        really = members.ask

        def ask(asks: Sequence[TakeRequest], entry_ttl: float) -> Pending[TakeReplies]:
            lost: Pending[TakeReplies] = Pending()

            def lose(_: Pending[TakeReplies]) -> None:
                lost.set_exception(BackendUnavailable(what="lost"))
                tasks[0].cancel()

            really(asks, entry_ttl).add_done_callback(lose)
            return lost

        monkeypatch.setattr(members, "ask", ask)
        tasks.append(asyncio.create_task(pool.acquire()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await eventually(lambda: score(fresh_redis, "a") == 0, "given back")
