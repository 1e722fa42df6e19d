"""Random cancellations while slots move and nodes are replaced leave nothing behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio.to_thread
import pytest
import redis

from aiorwlock_remote import connect
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.connections import eventually
from tests.faults import redis_cancels
from tests.faults.redis_cancels import HOT, LOCKS, Probe
from tests.loops import one_each
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartCluster

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = 5
SLOTS = [slot_of(f"mutex_locks/hot,{number}".encode()) for number in range(HOT)]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Without uvloop: what moves is nothing new to it."""
    backend: str = request.param
    return backend


@asynccontextmanager
async def meanwhile(trouble: Callable[[], object]) -> AsyncIterator[None]:
    """Trouble in a thread, time and again; at rest at the end."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            trouble()
            over.wait(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, run)
        yield
        over.set()


def moves(cluster: Cluster, chance: random.Random) -> Callable[[], object]:
    """A slot is given to another node, not always quickly."""

    def move() -> None:
        slot = chance.choice(SLOTS)
        masters = [s for s in cluster.servers if s.role == "master"]
        to = chance.choice([s for s in masters if s is not cluster.owner(slot)])
        cluster.begin_move(slot, to)
        while cluster.move_keys(slot, to, count=1):
            time.sleep(0.005)
        cluster.end_move(slot, to)

    return move


def failovers(cluster: Cluster, chance: random.Random) -> Callable[[], object]:
    """A replica takes over in good order: nothing written is lost."""

    def replace() -> None:
        replicas = [s for s in cluster.servers if s.role == "slave"]
        new = chance.choice(replicas)
        new.ask("CLUSTER", "FAILOVER")
        for _ in range(500):
            if new.role == "master":
                return
            time.sleep(0.01)

    return replace


def ours(cluster: Cluster) -> list[Any]:
    """What the nodes know of us: connections and channels."""
    found: list[Any] = []
    for server in cluster.servers:
        clients = server.ask("CLIENT", "LIST").decode().splitlines()
        found += [line for line in clients if "name=aiorwlock-remote" in line]
        found += server.ask("PUBSUB", "SHARDCHANNELS")
        found += server.ask("PUBSUB", "CHANNELS")
    return found


@pytest.mark.parametrize("trouble", one_each(moves, failovers))
async def test_cancellations(
    start_cluster: StartCluster,
    anyio_backend: str,
    trouble: Callable[[Cluster, random.Random], Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing held or waited for; after closing no connection and no channel."""
    monkeypatch.setattr(redis_cancels, "ROUND", 1000)
    cluster = start_cluster(node_timeout=5)
    host, port = "127.0.0.1", cluster.servers[0].port
    plain = redis.RedisCluster(host=host, port=port, decode_responses=True)
    async with AsyncExitStack() as stack:
        stack.callback(plain.close)
        all_locks = [
            await stack.enter_async_context(connect(cluster.url)) for _ in range(LOCKS)
        ]
        probing = Probe(all_locks, SEED, native=anyio_backend == "asyncio")
        async with meanwhile(trouble(cluster, random.Random(SEED))):
            await probing.run(1000, plain)
    assert probing.report.faults() == []
    assert probing.report.cancels >= 1000
    with suppress(AssertionError):
        await eventually(lambda: not ours(cluster), "gone")
    assert ours(cluster) == []
    assert not [t for t in threading.enumerate() if "aiorwlock" in t.name]
