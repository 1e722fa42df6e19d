"""Plain redis-py programs with the published statements, and our mutex sets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import pytest

from aiorwlock_remote import Held, LockLost
from tests.backends.redis.connections import eventually
from tests.recipes.fix_sets import KEY, proxies, score
from tests.recipes.published import Published
from tests.servers.fix_redis import StartRedis
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("other programs are nothing new to it"),
]

Start = Callable[..., Published]


@pytest.fixture(params=["whole", "fraction"])
def clock(request: pytest.FixtureRequest) -> str:
    """What the other program writes: whole seconds, or fractions."""
    clock: str = request.param
    return clock


@contextmanager
def other(server: RedisServer, timeout: float, clock: str) -> Iterator[Published]:
    program = Published(server, KEY, timeout, clock)
    yield program
    program.close()


async def test_each_keeps_the_other_out(fresh_redis: RedisServer, clock: str) -> None:
    with other(fresh_redis, 60, clock) as theirs:
        theirs.create("a")
        async with proxies(fresh_redis) as ours:
            for name in ("a", None):
                pair = theirs.acquire(name or "")
                assert pair is not None
                assert await ours.try_acquire(name) is None
                assert theirs.update(pair) is not None
                assert await ours.try_acquire(name) is None
                pair = (pair[0], f"{score(fresh_redis, 'a'):.6f}")
                assert theirs.release(pair)
                async with ours.acquire(name, timeout=1) as held:
                    assert theirs.acquire(name or "") is None
                    assert not theirs.release(pair), "an old pair is refused"
                    await ours.update(held)
                    assert theirs.acquire(name or "") is None


async def test_their_takeover_of_ours(fresh_redis: RedisServer, clock: str) -> None:
    """Once ours has expired: our update and release change nothing, and say so."""
    with other(fresh_redis, 1, clock) as theirs:
        async with proxies(fresh_redis, "a", "b", lease=1, keep=False) as ours:
            one, two = await ours.acquire("a"), await ours.acquire("b")
            taken: set[str] = set()

            def takes_both() -> bool:
                pair = theirs.acquire()
                if pair is not None:
                    taken.add(pair[0])
                return taken == {"a", "b"}

            await eventually(takes_both, "both are taken")
            before = score(fresh_redis, "a"), score(fresh_redis, "b")
            with pytest.raises(LockLost):
                await ours.update(one)
            with pytest.raises(LockLost):
                await ours.release(two, remove=True)
            # Even if we had not noticed ourselves that our lease is over.
            step = ours._acquirer.members.end(two._lease.ticket)
            assert not (await step).held  # type: ignore[union-attr]
            assert (score(fresh_redis, "a"), score(fresh_redis, "b")) == before


async def test_our_takeover_of_theirs(fresh_redis: RedisServer, clock: str) -> None:
    with other(fresh_redis, 1, clock) as theirs:
        theirs.create("a")
        pair = theirs.acquire()
        assert pair is not None
        async with (
            proxies(fresh_redis, lease=1) as ours,
            ours.acquire(timeout=10) as held,
        ):
            assert theirs.update(pair) is None
            assert not theirs.release(pair)
            held.check()


async def test_equal_seconds(fresh_redis: RedisServer) -> None:
    """Grants of one member within one second have different scores, both ways."""
    with other(fresh_redis, 60, "whole") as theirs:
        async with proxies(fresh_redis, "a") as ours:
            stale = await ours.acquire()
            fresh_redis.ask("ZADD", KEY, 0, "a")  # somebody broke it
            pair = theirs.acquire()
            assert pair is not None
            with pytest.raises(LockLost):
                await ours.update(stale)
            assert theirs.release(pair)
            async with ours.acquire() as held:
                assert theirs.update(pair) is None
                assert not theirs.release(pair)
                with pytest.raises(LockLost):
                    await ours.release(stale)
                held.check()
                await ours.update(held)


@pytest.mark.parametrize("events", ["Kz", ""])
async def test_waiters_for_foreign_holders(
    start_redis: StartRedis, events: str
) -> None:
    """Woken by the event, else there at the next poll."""
    server = start_redis(config={"notify-keyspace-events": events or '""'})
    channel = f"__keyspace@0__:{KEY}"
    got: list[Held] = []
    poll = 300 if events else 1.25
    with other(server, 60, "fraction") as theirs:
        theirs.create("a")
        pair = theirs.acquire()
        assert pair is not None

        waiting = proxies(server, revalidate_seconds=poll)
        async with waiting as ours, anyio.create_task_group() as group:

            async def wait() -> None:
                async with ours.acquire() as held:
                    got.append(held)

            def ready() -> bool:
                listens = server.ask("PUBSUB", "NUMSUB", channel)[1] == 1
                return bool(server.ask("EXISTS", f"{{{KEY}}}.queue")) and (
                    listens or not events
                )

            group.start_soon(wait)
            await eventually(ready, "waits and listens")
            assert theirs.release(pair)
            await eventually(lambda: bool(got), "got it")
    assert server.ask("PUBSUB", "NUMSUB", channel)[1] == 0, "listens no more"


@pytest.mark.slow
async def test_side_by_side(fresh_redis: RedisServer, clock: str) -> None:
    """A program of theirs and 10 tasks of ours on 3: never two on one, both go on."""
    inside: dict[str, str] = {}
    turns = {"ours": 0, "theirs": 0}
    done = threading.Event()
    clashes: list[str] = []

    def enter(name: str, who: str) -> None:
        if name in inside:
            clashes.append(f"{who} met {inside[name]} in {name}")
        inside[name] = who
        turns[who] += 1

    def foreign() -> None:
        with other(fresh_redis, 60, clock) as theirs:
            while not done.wait(0.001):
                pair = theirs.acquire()
                if pair is not None:
                    enter(pair[0], "theirs")
                    done.wait(0.002)
                    del inside[pair[0]]
                    assert theirs.release(pair)

    async with proxies(fresh_redis, "a", "b", "c") as ours:

        async def work() -> None:
            while turns["ours"] < 500:
                async with ours.acquire() as held:
                    enter(held.name, "ours")
                    await anyio.sleep(0.002)
                    del inside[held.name]

        thread = threading.Thread(target=foreign)
        thread.start()
        try:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as group:
                    for _ in range(10):
                        group.start_soon(work)
        finally:
            done.set()
            thread.join()
    assert clashes == []
    assert turns["theirs"] > 20
