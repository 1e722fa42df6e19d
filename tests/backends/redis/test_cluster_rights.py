"""The rights that the documentation says a cluster needs: enough, none too many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
import pytest
import redis

from aiorwlock_remote import BackendError, connect
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.rights import cluster_rules, objects, rules
from tests.faults.redis_waits import waits_at
from tests.servers.cluster import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("its connections are those of asyncio"),
]

CLUSTER_RIGHTS = [right for right in cluster_rules() if right[0] == "+"]


@pytest.fixture
async def user_url(redis_cluster: Cluster) -> AsyncIterator[str]:
    for server in redis_cluster.servers:
        server.ask("ACL", "LOG", "RESET")
    yield redis_cluster.url.replace("://", "://locks:password@")
    for server in redis_cluster.servers:
        server.ask("ACL", "DELUSER", "locks")


async def submit(cluster: Cluster, url: str) -> None:
    """Somebody waits, after the slot was somewhere else and came back."""
    cluster.ask("mutex_locks/a,1", "DEL", "mutex_locks/a,1")
    slot = slot_of(b"mutex_locks/a,1")
    async with connect(url) as one, connect(url) as two:
        async with anyio.create_task_group() as tasks, one.mutex("a", 1):

            async def wait() -> None:
                async with two.mutex("a", 1):
                    pass

            tasks.start_soon(wait)
            await waits_at(cluster.owner(slot), b"mutex_locks/a,1")
        home = cluster.owner(slot)
        cluster.move(slot, cluster.another(slot))
        async with one.mutex("a", 1):
            cluster.move(slot, home)


def refused(cluster: Cluster) -> set[bytes]:
    return set().union(*map(objects, cluster.servers))


async def test_the_documented_rights_are_enough(
    redis_cluster: Cluster, user_url: str
) -> None:
    for server in redis_cluster.servers:
        server.ask("ACL", "SETUSER", "locks", *rules(), *cluster_rules())
    await submit(redis_cluster, user_url)
    assert refused(redis_cluster) <= {b"info", b"config|get", b"client|kill"}


@pytest.mark.parametrize("right", CLUSTER_RIGHTS)
async def test_none_of_them_is_too_many(
    redis_cluster: Cluster, user_url: str, right: str
) -> None:
    some = [rule for rule in (*rules(), *cluster_rules()) if rule != right]
    for server in redis_cluster.servers:
        server.ask("ACL", "SETUSER", "locks", *some)
    with suppress(BackendError, ExceptionGroup):
        await submit(redis_cluster, user_url)
    assert right[1:].encode() in refused(redis_cluster)


async def test_a_user_who_may_not_subscribe_learns_it_at_once(
    redis_cluster: Cluster, user_url: str
) -> None:
    """Else the first task that waits would learn it."""
    some = [rule for rule in (*rules(), *cluster_rules()) if rule != "+ssubscribe"]
    for server in redis_cluster.servers:
        server.ask("ACL", "SETUSER", "locks", *some)
    with pytest.raises(BackendError, match="ssubscribe"):
        async with connect(user_url):
            pass


@pytest.mark.only_on("asyncio", "what the server says is the same on both")
@pytest.mark.usefixtures("user_url")
async def test_a_node_looks_at_rights_before_it_sends_elsewhere(
    redis_cluster: Cluster,
) -> None:
    """So who is sent elsewhere while the locks are opened has the right to hear."""
    some = [rule for rule in (*rules(), *cluster_rules()) if rule != "+ssubscribe"]
    for server in redis_cluster.servers:
        server.ask("ACL", "SETUSER", "locks", *some)
    another = redis_cluster.another(slot_of(b"wake/1"))
    url = another.url.replace("://", "://locks:password@")
    with (
        redis.Redis.from_url(url) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command("SSUBSCRIBE", "wake/1")
    with (
        redis.Redis.from_url(another.url) as client,
        pytest.raises(redis.exceptions.MovedError),
    ):
        client.execute_command("SSUBSCRIBE", "wake/1")
