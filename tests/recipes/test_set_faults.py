"""Mutex sets when something goes wrong: cancellations, lost connections, big sets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, LockLost, connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import NotHeld, Release, Released, Renew, Renewed
from aiorwlock_remote.core.mutex_set import SetMember, Taken, TakeReplies, TakeRequest
from aiorwlock_remote.recipes import MutexSet
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, QUEUE, STATE, proxies, score, traces
from tests.recipes.published import Published
from tests.renewals import renewed
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


# ----------------------------------------- Grants of a mutex set that end early


@pytest.mark.parametrize("name", ["a", None])
async def test_an_expiry_nobody_announces(
    fresh_redis: RedisServer, name: str | None
) -> None:
    """A dead holder's mutex is taken when its lease ends: by a timer, not a poll."""
    async with (
        proxies(fresh_redis, "a", lease=1, keep=False) as dead,
        proxies(fresh_redis, lease=1, revalidate_seconds=300) as other,
    ):
        held = await dead.acquire()
        ends = time.time() + 1
        async with other.acquire(name, timeout=30) as mine:
            assert time.time() >= ends - 0.05
            assert mine.fence > held.fence
            with pytest.raises(LockLost):
                await held.release()
            mine.check()
            assert score(fresh_redis, "a") == mine.fence / 1e6, "untouched"


@pytest.mark.usefixtures("renewed_often")
async def test_the_keeper_updates(fresh_redis: RedisServer) -> None:
    async with (
        proxies(fresh_redis, "a") as pool,
        pool.acquire() as held,
    ):
        before = score(fresh_redis, "a") or 0
        await eventually(lambda: (score(fresh_redis, "a") or 0) > before, "kept")
        await renewed(held)


@pytest.mark.usefixtures("renewed_often")
@pytest.mark.parametrize("how", ["removed", "released", "stolen"])
async def test_lost_while_held(fresh_redis: RedisServer, how: str) -> None:
    """Found at the next renewal; the body is cancelled, nothing is changed."""
    async with proxies(fresh_redis, "a") as pool:
        with pytest.raises(LockLost) as caught:
            async with pool.acquire():
                if how == "removed":
                    await pool.remove("a")
                else:
                    stamp = 0 if how == "released" else time.time() + 60
                    fresh_redis.ask("ZADD", KEY, str(stamp), "a")
                with anyio.fail_after(5):
                    await anyio.sleep_forever()
        assert caught.value.reason == ("stolen" if how == "stolen" else "forced")


async def test_one_that_is_held_too_long_is_given_back(
    fresh_redis: RedisServer,
) -> None:
    """At once: its lease has long to go."""
    async with (
        proxies(fresh_redis, "a", lease=600, max_hold=0.1) as pool,
        proxies(fresh_redis, lease=600) as other,
    ):
        held = await pool.acquire()
        async with other.acquire("a", timeout=30) as mine:
            assert held.lost == "stalled"
            with pytest.raises(LockLost):
                await held.release()
            await mine.extend()


async def test_the_store_refuses_an_expired_grant(fresh_redis: RedisServer) -> None:
    """By its own clock, though nobody took over: what was held may have been used."""
    async with proxies(fresh_redis, "a", "b", lease=0.3, keep=False) as pool:
        one, two = await pool.acquire("a"), await pool.acquire("b")
        before = score(fresh_redis, "a"), score(fresh_redis, "b")
        await anyio.sleep(0.35)
        store = pool._session.client.store
        released = await store.step(one._lease.resource, Release(one._lease.ticket))
        assert released == Released(held=False, reason="expired")
        renewal = Renew(((two._lease.ticket, 300_000),))
        assert await store.step(two._lease.resource, renewal) == Renewed((NotHeld(),))
        assert (score(fresh_redis, "a"), score(fresh_redis, "b")) == before
        for held in (one, two):
            with pytest.raises(LockLost):
                held.check()


@pytest.mark.parametrize("who", ["ours", "theirs"])
async def test_a_takeover_within_the_same_second(
    fresh_redis: RedisServer, who: str
) -> None:
    """By the store itself: the expired holder's update and release are refused."""
    lease = 200_000
    theirs = Published(fresh_redis, KEY, lease / 1e6)
    async with proxies(fresh_redis, "a", lease=lease / 1e6) as pool:
        members, store = pool._acquirer.members, pool._session.client.store

        async def takes_over() -> bool:
            if who == "theirs":
                return theirs.acquire("a") is not None
            (answer,) = (
                await members.ask((TakeRequest("a", "new", lease),), 0.0)
            ).answers
            return isinstance(answer, Taken)

        for _ in range(20):  # until both fall into one second
            fresh_redis.ask("ZADD", KEY, 0, "a")
            (old,) = (await members.ask((TakeRequest("a", "old", lease),), 0.0)).answers
            assert isinstance(old, Taken)
            await anyio.sleep(lease / 1e6 + 0.01)
            assert await takes_over()
            taken = score(fresh_redis, "a") or 0
            if int(taken) == old.fence // 1_000_000:
                break
        else:
            pytest.fail("never within one second")
        member = SetMember(KEY, "a")
        renewed = await store.step(member, Renew((("old", lease),)))
        assert isinstance(renewed, Renewed)
        assert isinstance(renewed.outcomes[0], NotHeld)
        for refused in (
            await store.step(member, Release("old")),
            await members.end("old"),
        ):
            assert isinstance(refused, Released)
            assert not refused.held
        assert score(fresh_redis, "a") == taken
    theirs.close()


async def test_not_kept_is_lost_when_its_lease_ends(fresh_redis: RedisServer) -> None:
    async with proxies(fresh_redis, "a", lease=0.4, keep=False) as pool:
        with pytest.raises(LockLost) as caught:
            async with pool.acquire():
                with anyio.fail_after(5):
                    await anyio.sleep_forever()
        assert caught.value.reason == "expired"


async def test_no_record_of_a_dead_client_stays(fresh_redis: RedisServer) -> None:
    """Once another has taken over; what the state keeps does not grow with crashes."""
    async with proxies(fresh_redis, "a", lease=0.3) as pool:
        dead = TakeRequest("a", "dead", 300_000)
        assert isinstance(
            (await pool._acquirer.members.ask((dead,), 0.0)).answers[0], Taken
        )
        async with pool.acquire(timeout=5):
            assert fresh_redis.ask("HEXISTS", STATE, "tdead") == 0
    assert traces(fresh_redis) == []


# ----- Mutex sets whose requests or answers are lost: nothing stays with no one


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
