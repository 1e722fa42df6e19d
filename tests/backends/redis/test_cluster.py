"""One ``Locks`` on the nodes of a cluster, and slots that move under it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import anyio
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Locks,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.connections import eventually
from tests.faults.redis_waits import waits_at
from tests.servers.cluster import PRIMARIES, Cluster
from tests.servers.fix_redis import StartCluster
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


@pytest.fixture
async def locks(redis_cluster: Cluster, prefix: str) -> AsyncIterator[Locks]:
    async with connect(redis_cluster.url, prefix=prefix) as locks:
        yield locks


def seat(prefix: str, kind: str, number: int) -> bytes:
    return f"mutex_locks/{prefix}{kind},{number}".encode()


async def test_any_seed_will_do(redis_cluster: Cluster) -> None:
    nobody, node = free_port(), redis_cluster.servers[-1].port  # a replica
    url = f"redis+cluster://127.0.0.1:{nobody},127.0.0.1:{node}"
    async with connect(url) as locks, locks.mutex("seed", 1):
        pass


async def test_no_seed_answers() -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1"):
        async with connect(url, connect_timeout=1):
            pass


@pytest.mark.only_on("asyncio", "the next one is asked on any loop")
async def test_a_silent_seed(start_cluster: StartCluster) -> None:
    cluster = start_cluster(node_timeout=60)
    cluster.servers[0].pause()
    async with connect(cluster.url, connect_timeout=3) as locks:
        await locks.mutex("elsewhere", 3).locked()
    for server in cluster.servers[1:]:
        server.pause()
    with pytest.raises(BackendUnavailable, match=r"no answer|did not answer"):
        async with connect(cluster.url, connect_timeout=1):
            pass


async def test_no_cluster(fresh_redis: RedisServer) -> None:
    url = fresh_redis.url.replace("redis://", "redis+cluster://")
    with pytest.raises(ConfigurationError, match="no node of a cluster"):
        async with connect(url):
            pass


async def test_a_node_is_no_server_of_its_own(redis_cluster: Cluster) -> None:
    with pytest.raises(Unsupported, match="redis\\+cluster://"):
        async with connect(redis_cluster.servers[0].url) as locks:
            for number in range(10):
                async with locks.mutex("lost", number):
                    pass


async def test_every_node_has_some(
    redis_cluster: Cluster, locks: Locks, prefix: str
) -> None:
    """Locked, listed and examined wherever they are."""
    seats = [seat(prefix, "all", number) for number in range(30)]
    owners = {redis_cluster.owner(slot_of(key)).port for key in seats}
    assert len(owners) == PRIMARIES
    grants = [await locks.mutex("all", number).acquire() for number in range(30)]
    listed = {d.resource_id async for d in locks.list("all")}
    assert listed == {str(number) for number in range(30)}
    names = {finding.name async for finding in locks.examine()}
    assert {f"version 127.0.0.1:{port}" for port in owners} < names
    assert all([await held.release() for held in grants])


async def test_pairs_that_no_cluster_can_lock_are_not_listed(
    redis_cluster: Cluster, locks: Locks, prefix: str
) -> None:
    """A foreign program's keys in two slots hide nobody else."""
    for name in ("writelock:x:1", "readlock:y:2"):
        key = f"{prefix}{name}"
        redis_cluster.owner(slot_of(key.encode())).ask("SET", key, "somebody")
    async with locks.mutex("listed", 1):
        assert [d.resource_type async for d in locks.list()] == ["listed"]


async def test_a_slot_on_the_move(redis_cluster: Cluster, prefix: str) -> None:
    """Nothing is done there meanwhile, afterwards everything in order.

    The other gives up after 3 s: in less than that a busy machine may not connect.
    """
    url = redis_cluster.url
    slot = slot_of(seat(prefix, "moving", 1))
    released: list[bool] = []
    async with (
        connect(url, prefix=prefix, connect_timeout=60) as locks,
        connect(url, prefix=prefix, connect_timeout=3) as others,
        anyio.create_task_group() as tasks,
    ):
        held = await locks.mutex("moving", 1).acquire()
        to = redis_cluster.another(slot)
        old = redis_cluster.begin_move(slot, to)

        async def release() -> None:
            released.append(await held.release())

        tasks.start_soon(release)
        with pytest.raises(BackendUnavailable, match="TRYAGAIN") as caught:
            await others.mutex("moving", 1).acquire()
        assert caught.value.nothing_done
        assert released == []
        assert old.ask("EXISTS", seat(prefix, "moving", 1)) == 1
        redis_cluster.end_move(slot, to)
        await eventually(lambda: released == [True], "released")
        async with locks.mutex("moving", 1) as again:
            assert again.fence > held.fence
            assert to.ask("EXISTS", seat(prefix, "moving", 1)) == 1


async def test_waiters_are_notified_at_the_new_node_of_a_slot(
    redis_cluster: Cluster, locks: Locks, prefix: str
) -> None:
    """Not by their poll: their channel is heard at the new node."""
    key = seat(prefix, "asked", 1)
    slot = slot_of(key)
    to = redis_cluster.another(slot)
    held = await locks.mutex("asked", 1).acquire()
    async with (
        connect(redis_cluster.url, prefix=prefix) as others,
        anyio.create_task_group() as tasks,
    ):

        async def wait() -> None:
            async with others.mutex("asked", 1):
                pass

        tasks.start_soon(wait)
        await waits_at(redis_cluster.owner(slot), key)
        redis_cluster.move(slot, to)
        channels = b"{%b}.rwlock.wake/*" % key

        def heard() -> bool:
            return len(to.ask("PUBSUB", "SHARDCHANNELS", channels)) > 0

        await eventually(heard, "it is heard at the new node")
        assert await held.release()


async def test_foreigners_are_noticed_wherever_they_are(
    start_cluster: StartCluster,
) -> None:
    """By the keyspace events of the node that has the slot now."""
    cluster = start_cluster(node_timeout=60, config={"notify-keyspace-events": "Kgx"})
    key = seat("", "foreign", 1)
    slot = slot_of(key)
    to = cluster.another(slot)
    cluster.owner(slot).ask("SET", key, "gluww,1700000000")
    entered = anyio.Event()
    async with connect(cluster.url) as locks, anyio.create_task_group() as tasks:

        async def wait() -> None:
            async with locks.mutex("foreign", 1):
                entered.set()

        tasks.start_soon(wait)
        await waits_at(cluster.owner(slot), key)
        cluster.move(slot, to)
        channel = b"__keyspace@0__:" + key

        def heard() -> bool:
            return channel in to.ask("PUBSUB", "CHANNELS", channel)

        await eventually(heard, "its events are heard at the new node")
        assert not entered.is_set()
        to.ask("DEL", key)
        with anyio.fail_after(10):
            await entered.wait()


async def test_replicas_acknowledge_at_the_new_node(
    redis_cluster: Cluster, prefix: str
) -> None:
    """``min_replicas``: asked where the grant was made, after a redirection too."""
    slot = slot_of(seat(prefix, "kept", 1))
    async with connect(redis_cluster.url, prefix=prefix, min_replicas=1) as locks:
        for _ in range(3):
            async with locks.mutex("kept", 1):
                pass
            redis_cluster.move(slot, redis_cluster.another(slot))
    async with connect(redis_cluster.url, prefix=prefix, min_replicas=2) as locks:
        with pytest.raises(BackendUnavailable) as caught:
            await locks.mutex("kept", 1).acquire()
        assert caught.value.replicas == 1
        assert not await locks.mutex("kept", 1).locked()


async def test_sets_of_mutexes(redis_cluster: Cluster, prefix: str) -> None:
    async with (
        connect(redis_cluster.url, prefix=prefix) as locks,
        connect(redis_cluster.url, prefix=prefix) as others,
    ):
        proxies = locks.mutex_set("proxies{eu}")
        await proxies.create("a")
        assert [name async for name in proxies.list()] == ["a"]
        held = await proxies.acquire()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                async with others.mutex_set("proxies{eu}").acquire("a") as mine:
                    assert mine.fence > held.fence

            tasks.start_soon(wait)
            queue = f"{prefix}proxies{{eu}}.queue".encode()
            node = redis_cluster.owner(slot_of(queue))
            await eventually(lambda: node.ask("EXISTS", queue) == 1, "it waits")
            assert await held.release()
        with pytest.raises(ConfigurationError, match="several slots"):
            locks.mutex_set("a}b")
