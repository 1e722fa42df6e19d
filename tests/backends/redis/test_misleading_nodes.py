"""A ``Locks`` on a cluster whose nodes mislead it, and that is closed meanwhile."""

from __future__ import annotations

from uuid import uuid4

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, connect
from aiorwlock_remote.backends.redis.cluster.renewal_channel import (
    ClusterRenewalChannel,
)
from aiorwlock_remote.backends.redis.cluster.slots import SlotMap, slot_of
from aiorwlock_remote.backends.redis.keys import Keys
from aiorwlock_remote.backends.redis.options import options_of
from aiorwlock_remote.backends.redis.scripts import ALL
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.url import parse
from tests.backends.redis.connections import CLOCK_ONLY, eventually
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartCluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


def seat(prefix: str) -> bytes:
    return f"mutex_locks/{prefix}moving,1".encode()


async def test_closing_releases_where_the_slot_went(
    redis_cluster: Cluster, prefix: str
) -> None:
    """Even if the release is the first to hear of it."""
    slot = slot_of(seat(prefix))
    async with connect(redis_cluster.url, prefix=prefix) as locks:
        held = await locks.mutex("moving", 1).acquire()
        redis_cluster.move(slot, to := redis_cluster.another(slot))
        assert to.ask("EXISTS", seat(prefix)) == 1
    assert not held.valid
    assert to.ask("EXISTS", seat(prefix)) == 0


async def test_closing_while_the_slot_moves(
    redis_cluster: Cluster, prefix: str
) -> None:
    """What is to be released waits for the move, but not for long."""
    slot = slot_of(seat(prefix))
    for whole in (True, False):
        locks = await connect(redis_cluster.url, prefix=prefix)
        held = await locks.mutex("moving", 1).acquire()
        to = redis_cluster.another(slot)
        redis_cluster.begin_move(slot, to)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(locks.aclose)
            await anyio.sleep(0.2)
            if whole:
                redis_cluster.end_move(slot, to)
        assert not held.valid
        if not whole:
            redis_cluster.end_move(slot, to)
        assert to.ask("EXISTS", seat(prefix)) == (not whole)


async def test_a_slot_that_nobody_had(start_cluster: StartCluster) -> None:
    """It is looked for as long as somebody wants something in it."""
    cluster = start_cluster(
        node_timeout=60, config={"cluster-require-full-coverage": "no"}
    )
    slot = slot_of(seat(""))
    ident = cluster.owner(slot).ask("CLUSTER", "MYID")
    for server in cluster.servers:
        if server.role == "master":
            server.ask("CLUSTER", "DELSLOTS", slot)
    async with connect(cluster.url, connect_timeout=2) as locks:
        mutex = locks.mutex("moving", 1)
        # The second, as long as a replica still has it in its map.
        message = f"no node has slot {slot}|Hash slot not served"
        with pytest.raises(BackendUnavailable, match=message):
            await mutex.acquire()
        for server in cluster.servers:
            if server.role == "master":
                server.ask("CLUSTER", "SETSLOT", slot, "NODE", ident)
        async with mutex:
            pass


async def test_a_node_that_was_thrown_out(start_cluster: StartCluster) -> None:
    """It knows of nobody, and nobody takes its word for it."""
    cluster = start_cluster(
        node_timeout=60, config={"cluster-require-full-coverage": "no"}
    )
    slot = slot_of(seat(""))
    old = cluster.owner(slot)
    async with connect(cluster.url, connect_timeout=5) as locks:
        mutexes = [locks.mutex("moving", number) for number in range(12)]
        for mutex in mutexes:
            async with mutex:
                pass
        replica = cluster.servers[cluster.servers.index(old) + 3]
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        await eventually(lambda: old.role == "slave", "replaced")
        ident = old.ask("CLUSTER", "MYID")
        old.ask("CLUSTER", "RESET", "HARD")
        for server in cluster.servers:
            if server is not old:
                server.ask("CLUSTER", "FORGET", ident)
        for _ in range(5):
            for mutex in mutexes:
                async with mutex:
                    pass


async def test_a_list_of_what_has_moved(redis_cluster: Cluster, prefix: str) -> None:
    """A question is sent on like a script."""
    async with connect(redis_cluster.url, prefix=prefix) as locks:
        proxies = locks.mutex_set("proxies")
        await proxies.create("a")
        slot = slot_of(f"{prefix}proxies".encode())
        redis_cluster.move(slot, redis_cluster.another(slot))
        assert [name async for name in proxies.list()] == ["a"]


def test_the_keeper_has_a_map_of_its_own(redis_cluster: Cluster, prefix: str) -> None:
    """What it finds does not change under the loop; what the loop learns, it knows."""
    options = options_of(parse(redis_cluster.url))
    slots = SlotMap(options.seeds)
    asked = options.seeds[0]
    slots.learn(redis_cluster.servers[0].ask("CLUSTER", "SLOTS"), asked)
    key = seat(prefix)
    old = slots.owners[slot_of(key)]
    maps: list[SlotMap] = []
    batches = ClusterRenewalChannel(options, CLOCK_ONLY, ALL, slots, maps.append)
    keys = Keys(resource("moving", 1, prefix), cluster=True)
    request = keys.look, keys.args
    assert batches.lane(key) == old
    to = redis_cluster.another(slot_of(key))
    redis_cluster.move(slot_of(key), to)
    (outcome,) = batches.run_many([request], 5)
    assert not isinstance(outcome, Exception)
    assert batches.lane(key) == ("127.0.0.1", to.port)
    assert slots.owners[slot_of(key)] == old
    assert [each.owners[slot_of(key)] for each in maps] == [("127.0.0.1", to.port)]
    redis_cluster.move(slot_of(key), new := redis_cluster.another(slot_of(key)))
    slots.learn(new.ask("CLUSTER", "SLOTS"), asked)
    assert batches.lane(key) == ("127.0.0.1", new.port)
    batches.close()


async def test_a_node_that_is_away_is_a_finding(start_cluster: StartCluster) -> None:
    """What the others say is reported nonetheless; an incomplete list is none."""
    cluster = start_cluster(node_timeout=60)
    away = cluster.owner(slot_of(seat("")))
    async with connect(cluster.url, connect_timeout=1) as locks:
        away.kill()
        found = {f.name: f async for f in locks.examine()}
        assert found[f"reachable 127.0.0.1:{away.port}"].rating == "bad"
        others = [server for server in cluster.servers[:3] if server is not away]
        assert all(f"version 127.0.0.1:{other.port}" in found for other in others)
        with pytest.raises(BackendUnavailable, match=str(away.port)):
            assert not [each async for each in locks.list("moving")]
