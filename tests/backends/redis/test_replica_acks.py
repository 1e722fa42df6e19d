"""``min_replicas``: a grant is returned when so many have it, else withdrawn."""

from __future__ import annotations

import anyio
import pytest
import redis.asyncio

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Held,
    Locks,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.errors import too_few_replicas
from aiorwlock_remote.locks.client import session_of
from tests.backends.redis.connections import eventually
from tests.servers.fix_redis import StartRedis
from tests.servers.pair import QUICK, Pair, too_few
from tests.servers.process import until
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]


async def works(locks: Locks) -> None:
    """A turn in each mode, and all moves."""
    async with locks.mutex("fine", 1):
        pass
    async with locks.set_rwlock("{fine}", 3).reader as reader:
        await reader.extend()
    async with locks.set_rwlock("{fine}", 3).writer:
        pass
    async with locks.rwlock("fine", 2).writer as writer:
        assert isinstance(writer, Held)
        reader = await writer.downgrade()
        assert await reader.try_upgrade() is not None
    async with locks.semaphore("fine", 5, limit=2) as permit:
        await permit.extend()
    given = await locks.mutex("fine", 4).acquire()
    await (await locks.adopt(given.detach())).release()


async def test_grants_are_at_the_replica_when_they_are_returned(pair: Pair) -> None:
    async with connect(pair.url, min_replicas=1) as locks:
        await works(locks)
        for number in range(50):
            async with locks.mutex("there", number):
                assert pair.replica.ask("EXISTS", f"mutex_locks/there,{number}") == 1
    async with connect(f"{pair.url}&min_replicas=1") as locks:
        await works(locks)


async def test_control_without_it_nobody_asks_the_replica(pair: Pair) -> None:
    pair.replica.pause()
    async with connect(pair.url) as locks:
        await works(locks)


@pytest.mark.only_on("asyncio", "test_set_failover.py has trio")
async def test_too_few_replicas(pair: Pair) -> None:
    """Every way in is refused, and what was granted is free again."""
    async with connect(pair.url, min_replicas=1) as locks:
        reading = await locks.rwlock("kept", 1).reader.acquire()
        writing = await locks.rwlock("kept", 2).writer.acquire()
        given = (await locks.mutex("kept", 3).acquire()).detach()
        pair.replica.pause()
        await too_few(locks.mutex("new", 1).acquire())
        await too_few(locks.mutex("new", 1).acquire(timeout=5))
        await too_few(locks.mutex("new", 1).acquire(timeout=0))
        await too_few(locks.mutex("new", 1).try_acquire())
        await too_few(locks.rwlock("new", 2).reader.acquire())
        await too_few(locks.acquire_mutex_lock("new", 3, "gluww"))
        await too_few(locks.semaphore("new", 4, limit=2).acquire())
        assert not pair.held("new%semaphore,4")
        for number in (1, 2, 3):
            assert not pair.held(f"new,{number}")
            assert not pair.primary.ask("ZCARD", f"{{mutex_locks/new,{number}}}.queue")
        reading.check()
        await too_few(reading.try_upgrade())
        await too_few(writing.downgrade())
        assert not pair.held("kept,2")
        await too_few(locks.adopt(given))
        assert not pair.held("kept,3")
        pair.replica.resume()
        until(lambda: pair.acknowledged() == 1, "the replica is in step")
        await works(locks)
        async with locks.rwlock("kept", 2).writer.acquire(timeout=5):
            pass


async def test_one_replica_is_not_two(pair: Pair) -> None:
    async with connect(pair.url, min_replicas=2) as locks:
        await too_few(locks.mutex("new", 1).acquire(), have=1, of=2)
        assert not pair.held("new,1")


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_as_many_as_were_asked_for_are_enough(needed: int) -> None:
    """Of grants and of renewals."""
    for count in range(5):
        error = too_few_replicas("here", count, needed, 0.1)
        assert (error is None) == (count >= needed)
        assert error is None or error.replicas == count


async def test_a_renewal_that_no_replica_has_does_not_count(pair: Pair) -> None:
    """The new primary would end the lease, however often this one has renewed it."""
    async with connect(pair.url, min_replicas=1, lease=6) as locks:
        held = await locks.mutex("kept", 1).acquire()
        pair.replica.pause()
        await too_few(held.extend())
        await eventually(lambda: held.lost is not None, "the holder gives it up")
        assert held.lost in ("unreachable", "expired")  # whoever looks first
        _, sent, failed = session_of(locks).client.keeper.renewals
        assert sent - 1 <= failed  # the last one may be under way
        assert failed > 0
        pair.replica.resume()


async def test_renewals_that_a_replica_has_count(pair: Pair) -> None:
    async with connect(pair.url, min_replicas=1, lease=1.5) as locks:
        held = await locks.mutex("kept", 1).acquire()
        await held.extend()
        client = session_of(locks).client
        await eventually(lambda: client.keeper.renewals[1] >= 3, "it is renewed")
        held.check()
        assert client.keeper.renewals[2] == 0
        pair.primary.ask("SCRIPT", "FLUSH")
        sent = client.keeper.renewals[1]
        await eventually(lambda: client.keeper.renewals[1] > sent + 1, "once more")
        held.check()


@pytest.mark.only_on("asyncio", "a client of redis-py")
@pytest.mark.parametrize("reachable", [True, False])
async def test_renewals_over_a_clients_own_connection(
    pair: Pair, *, reachable: bool
) -> None:
    """Like all else it does, its renewals wait for the replica."""
    client = redis.asyncio.Redis(port=pair.primary.port)
    backend = RedisBackend(client)
    async with connect(backend, min_replicas=1, lease=3) as locks:
        held = await locks.mutex("kept", 1).acquire()
        if reachable:
            keeper = session_of(locks).client.keeper
            await eventually(lambda: keeper.renewals[1] >= 3, "it is renewed")
            held.check()
            assert keeper.renewals[2] == 0
        else:
            pair.replica.pause()
            await too_few(locks.mutex("new", 1).acquire())
            await eventually(lambda: held.lost is not None, "the holder gives it up")
            pair.replica.resume()
    await client.aclose()


async def test_a_release_needs_no_replica(pair: Pair) -> None:
    """Nor does one that carries a waiter along: the waiter alone is refused."""
    async with connect(pair.url, min_replicas=1) as locks:
        alone = await locks.mutex("left", 1).acquire()
        first = await locks.mutex("left", 2).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(too_few, locks.mutex("left", 2).acquire())
            queue = "{mutex_locks/left,2}.queue"
            await eventually(lambda: pair.primary.ask("ZCARD", queue) == 1, "it waits")
            pair.replica.pause()
            with anyio.fail_after(0.4):
                assert await alone.release()
            assert await first.release()
        assert not pair.held("left,2")


async def test_a_waiter_of_another_process_is_refused(pair: Pair) -> None:
    async with (
        connect(pair.url) as one,
        connect(pair.url, min_replicas=1) as two,
    ):
        first = await one.mutex("passed", 1).acquire()
        async with anyio.create_task_group() as group:
            group.start_soon(too_few, two.mutex("passed", 1).acquire())
            queue = "{mutex_locks/passed,1}.queue"
            await eventually(lambda: pair.primary.ask("ZCARD", queue) == 1, "it waits")
            pair.replica.pause()
            assert await first.release()
        async with one.mutex("passed", 1).acquire(timeout=5):
            pass


async def test_an_earlier_grant_survives_an_unconfirmed_repetition(pair: Pair) -> None:
    """A repeated call that is not confirmed takes nothing away."""
    async with connect(pair.url, min_replicas=1) as locks:
        assert await locks.acquire_mutex_lock("mine", 1, "gluww")
        async with connect(pair.url) as others:
            pair.replica.pause()
            async with others.mutex("something", 1):  # the replica has not all now
                await too_few(locks.acquire_mutex_lock("mine", 1, "gluww"))
        assert pair.held("mine,1")
        assert await locks.release_mutex_lock("mine", 1, "gluww")


async def test_a_grant_of_a_lost_connection_is_asked_about(pair: Pair) -> None:
    """The new connection wrote nothing, and WAIT promises nothing for that case.

    Redis 7.0 counts all earlier writes of the server, so that this test cannot show the
    need of the mark: test_an_earlier_grant_has_a_mark_of_its_own does.
    """
    async with connect(pair.url) as one:
        pair.replica.pause()
        assert await one.acquire_mutex_lock("mine", 1, "gluww")
        async with connect(pair.url, min_replicas=1) as two:
            await too_few(two.acquire_mutex_lock("mine", 1, "gluww"))
            pair.replica.resume()
            until(pair.level, "the replica has acknowledged everything")
            assert await two.acquire_mutex_lock("mine", 1, "gluww")
        assert pair.held("mine,1")


async def test_script_and_wait_leave_in_one_write(pair: Pair) -> None:
    with Proxy(pair.primary.port) as proxy:
        async with connect(proxy.url, min_replicas=1) as locks:
            async with locks.mutex("order", 1):
                pass
            before = len(proxy.chunks)
            held = await locks.mutex("order", 1).acquire(lease=None)
            (asked,) = proxy.chunks[before:]
            assert b"EVALSHA" in asked
            assert b"WAIT" in asked
            await held.release()
            assert b"WAIT" not in proxy.chunks[-1]


async def test_a_server_that_forgot_the_scripts(pair: Pair) -> None:
    """The script ran after its WAIT: another WAIT decides."""
    async with connect(pair.url, min_replicas=1) as locks:
        async with locks.mutex("order", 1):
            pass
        pair.primary.ask("SCRIPT", "FLUSH")
        async with locks.mutex("order", 1):
            pass
        pair.primary.ask("SCRIPT", "FLUSH")
        # So that the first WAIT, before the script, has nothing to wait for.
        until(pair.level, "the replica has acknowledged everything")
        pair.replica.pause()
        await too_few(locks.mutex("order", 1).acquire())
        assert not pair.held("order,1")


async def test_a_connection_lost_while_it_waits(pair: Pair) -> None:
    """The grant that was not returned is free again."""
    with Proxy(pair.primary.port) as proxy:
        async with connect(f"{proxy.url}?{QUICK}", min_replicas=1) as locks:
            pair.replica.pause()
            async with anyio.create_task_group() as group:

                async def ask() -> None:
                    with pytest.raises(BackendUnavailable):
                        await locks.mutex("cut", 1).acquire(timeout=0)

                group.start_soon(ask)
                await eventually(lambda: pair.held("cut,1"), "granted")
                proxy.cut()
            await eventually(lambda: not pair.held("cut,1"), "taken back")


async def test_a_user_who_may_not_wait(start_redis: StartRedis) -> None:
    server = start_redis(users=["bob on >pw ~* &* +@all -wait"])
    url = f"redis://bob:pw@127.0.0.1:{server.port}/0"
    async with connect(url, min_replicas=1) as locks:
        with pytest.raises(Unsupported, match="NOPERM"):
            await locks.mutex("order", 1).acquire()
        assert server.ask("EXISTS", "mutex_locks/order,1") == 0


@pytest.mark.parametrize("number", [-1, 1.0, True, "1", None])
async def test_invalid_numbers_of_replicas_are_refused(number: object) -> None:
    with pytest.raises(ConfigurationError, match="min_replicas"):
        await connect("memory://", min_replicas=number)  # type: ignore[arg-type]


async def test_a_store_without_replicas_refuses() -> None:
    with pytest.raises(ConfigurationError, match="knows no replicas"):
        await connect("memory://", min_replicas=1)


async def test_min_replicas_given_twice(redis_server: RedisServer) -> None:
    url = f"{redis_server.url}?min_replicas="
    for bad in ("", "-1", "1.5", "many"):
        with pytest.raises(ConfigurationError, match="not a number"):
            await connect(url + bad)
    with pytest.raises(ConfigurationError, match="2 for connect and 1 in the URL"):
        await connect(f"{url}1", min_replicas=2)
    async with connect(f"{url}1", min_replicas=1):
        pass
