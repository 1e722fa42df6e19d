"""Fixtures: one redis-server for all tests of a worker, others for those that hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from aiorwlock_remote.backends.redis.store import RedisStore
from aiorwlock_remote.core.timing import PollPolicy
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.cluster import Cluster
from tests.servers.pair import Pair
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup

StartRedis = Callable[..., RedisServer]
StartSentinels = Callable[..., SentinelGroup]
StartCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Shared: leave its settings alone, and use keys of your own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def fresh_redis(redis_server: RedisServer) -> RedisServer:
    """The shared one, emptied."""
    redis_server.ask("FLUSHALL")
    return redis_server


@pytest.fixture
def start_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRedis]:
    """Starts one as a test wants it: ``start_redis(config=…, users=…)``."""
    servers: list[RedisServer] = []

    def start(
        *,
        config: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        certificates: Certificates | None = None,
    ) -> RedisServer:
        folder = tmp_path_factory.mktemp("redis")
        server = RedisServer(
            folder, config=config, users=users, certificates=certificates
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def pair(start_redis: StartRedis) -> Iterator[Pair]:
    primary = start_redis(config={"repl-diskless-sync-delay": "0"})
    replica = start_redis(config={"replicaof": f"127.0.0.1 {primary.port}"})
    pair = Pair(primary, replica)
    yield pair
    replica.resume()


@pytest.fixture(scope="session")
def sentinel_group(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SentinelGroup]:
    """Shared, and no test's business to break: whoever is slow is not replaced."""
    group = SentinelGroup(tmp_path_factory.mktemp("sentinels"), down_after=60)
    yield group
    group.close()


@pytest.fixture
def start_sentinels(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartSentinels]:
    """Starts a group to be broken: ``start_sentinels(down_after=2)``, seconds."""
    groups: list[SentinelGroup] = []

    def start(*, down_after: float = 2) -> SentinelGroup:
        folder = tmp_path_factory.mktemp("sentinels")
        groups.append(SentinelGroup(folder, down_after=down_after))
        return groups[-1]

    yield start
    for group in groups:
        group.close()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared, and no test's business to break: whoever is slow is not replaced."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), node_timeout=60)
    yield cluster
    cluster.close()


@pytest.fixture
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCluster]:
    """Starts one to be broken: ``start_cluster(node_timeout=1)``, seconds."""
    clusters: list[Cluster] = []

    def start(
        *,
        node_timeout: float = 1.0,
        config: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        certificates: Certificates | None = None,
    ) -> Cluster:
        cluster = Cluster(
            tmp_path_factory.mktemp("cluster"),
            node_timeout=node_timeout,
            config=config,
            users=users,
            certificates=certificates,
        )
        clusters.append(cluster)
        return cluster

    yield start
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def seldom_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters poll once in minutes: who gets in was woken."""
    poll_policy = PollPolicy(poll_min=200, poll_max=300, entry_ttl=900)
    monkeypatch.setattr(RedisStore, "poll_policy", poll_policy)
