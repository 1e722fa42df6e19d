"""Grants of a mutex set that end early."""

from __future__ import annotations

import time

import anyio
import pytest

from aiorwlock_remote import LockLost
from aiorwlock_remote.core.commands import NotHeld, Release, Released, Renew, Renewed
from aiorwlock_remote.core.mutex_set import SetMember, Taken, TakeRequest
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, STATE, proxies, score, traces
from tests.recipes.published import Published
from tests.renewals import renewed
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.anyio


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
