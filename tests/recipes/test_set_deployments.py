"""The tests of mutex sets again: by a client, Sentinel, TLS, a cluster, few rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from tests.backends.redis.rights import rules, set_rules, user
from tests.recipes.fix_sets import KEY, Place
from tests.recipes.test_mutex_set import (
    test_closing_ends_waiting_and_gives_back,
    test_create_list_remove,
    test_fences_rise_and_scores_are_never_equal,
    test_first_come_first_served,
    test_named_and_any,
    test_named_and_any_wait_together,
    test_release_that_removes,
    test_update_gives_a_new_score_and_the_same_fence,
    test_waiters_of_a_mutex_set_are_woken_at_once,
)
from tests.servers.certificates import Certificates
from tests.servers.cluster import Cluster
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup

__all__ = [
    "test_closing_ends_waiting_and_gives_back",
    "test_create_list_remove",
    "test_fences_rise_and_scores_are_never_equal",
    "test_first_come_first_served",
    "test_named_and_any",
    "test_named_and_any_wait_together",
    "test_release_that_removes",
    "test_update_gives_a_new_score_and_the_same_fence",
    "test_waiters_of_a_mutex_set_are_woken_at_once",
]

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EVERYWHERE = "cluster", "rights", "sentinel", "tls"


@pytest.fixture(
    scope="module",
    params=[
        ("asyncio", "client"),  # redis-py knows nothing of trio
        *((loop, way) for loop in ("asyncio", "trio") for way in EVERYWHERE),
    ],
    ids="-".join,
)
def loop_and_way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Without uvloop: none of these is anything new to it."""
    both: tuple[str, str] = request.param
    return both


@pytest.fixture(scope="module")
def anyio_backend(loop_and_way: tuple[str, str]) -> str:
    return loop_and_way[0]


@pytest.fixture
def place(request: pytest.FixtureRequest, loop_and_way: tuple[str, str]) -> Place:
    """The place of that way."""
    found: Place = request.getfixturevalue(loop_and_way[1])
    return found


@pytest.fixture
async def client(fresh_redis: RedisServer) -> AsyncIterator[Place]:
    """``RedisBackend`` with a user's client."""
    theirs = Redis.from_url(fresh_redis.url, decode_responses=True)
    yield Place(fresh_redis, RedisBackend(theirs))
    await theirs.aclose()


@pytest.fixture
def rights(fresh_redis: RedisServer) -> Iterator[Place]:
    """The documented rights, and none too many."""
    with user(fresh_redis, rules() + set_rules()) as url:
        yield Place(fresh_redis, url)


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Place:
    """The node that has the set."""
    node = redis_cluster.owner(slot_of(KEY.encode()))
    node.ask("FLUSHALL")
    return Place(node, redis_cluster.url)


@pytest.fixture
def sentinel(sentinel_group: SentinelGroup) -> Place:
    """The primary that Sentinels name."""
    sentinel_group.primary.ask("FLUSHALL")
    return Place(sentinel_group.primary, sentinel_group.url)


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[RedisServer]:
    """It demands a certificate of its clients."""
    server = RedisServer(
        tmp_path_factory.mktemp("redis"),
        config={"tls-auth-clients": "yes"},
        certificates=certificates,
    )
    yield server
    server.close()


@pytest.fixture
def tls(guarded: RedisServer) -> Place:
    guarded.ask("FLUSHALL")
    return Place(guarded, guarded.tls_url)
