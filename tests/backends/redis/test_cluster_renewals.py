"""Locks of a cluster are kept: by each node, wherever their slots go, over TLS."""

from __future__ import annotations

from uuid import uuid4

import pytest

from aiorwlock_remote import Held, connect
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.connections import eventually
from tests.renewals import renewals, renewed
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.fix_redis import StartCluster
from tests.servers.process import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
    pytest.mark.usefixtures("renewed_often"),
]


def seat(prefix: str, kind: str, number: int) -> bytes:
    return f"mutex_locks/{prefix}{kind},{number}".encode()


async def test_a_silent_node_costs_others_nothing(start_cluster: StartCluster) -> None:
    """Other nodes' locks are renewed; its own are lost when their time is over."""
    cluster = start_cluster(node_timeout=60)
    silent = cluster.owner(slot_of(seat("", "renewed", 0)))
    async with connect(cluster.url) as locks:
        there, elsewhere = list[Held](), list[Held]()
        for number in range(12):
            mutex = locks.mutex("renewed", number)
            if cluster.owner(slot_of(seat("", "renewed", number))) is silent:
                there.append(await mutex.acquire(lease=2))
            else:
                elsewhere.append(await mutex.acquire())
        silent.pause()
        await eventually(lambda: all(held.lost for held in there), "lost")
        for held in elsewhere:
            await renewed(held)
        silent.resume()
    assert there
    assert elsewhere


async def test_renewed_while_the_slot_moves_and_the_loop_is_blocked(
    redis_cluster: Cluster,
) -> None:
    prefix = f"{uuid4().hex}:"
    slot = slot_of(seat(prefix, "blocked", 1))
    async with connect(redis_cluster.url, prefix=prefix) as locks:
        held = await locks.mutex("blocked", 1).acquire()
        again = renewals(held)
        for _ in range(3):
            redis_cluster.move(slot, redis_cluster.another(slot))
            for _ in range(2):
                until(again, "renewed")
        assert await held.release()


@pytest.mark.only_on("trio", "test_redis_tls.py has both loops")
async def test_tls(start_cluster: StartCluster, certificates: Certificates) -> None:
    """Nodes are known by the names that their certificates are for."""
    config = {
        "tls-cluster": "yes",
        "tls-replication": "yes",
        "cluster-announce-hostname": "localhost",
        "cluster-preferred-endpoint-type": "hostname",
    }
    cluster = start_cluster(node_timeout=60, config=config, certificates=certificates)
    hosts = ",".join(f"localhost:{server.tls_port}" for server in cluster.servers)
    url = f"rediss+cluster://{hosts}?ca_file={certificates.authority}"
    async with connect(url) as locks:
        for number in range(10):
            async with locks.mutex("tls", number) as held:
                await renewed(held, 1)
