"""The stores that are recorded, each on a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.cassandra import CassandraNode
from tests.servers.cassandra_ring import Visit
from tests.servers.etcd import Etcd
from tests.servers.fix_cassandra import SharedNode, fresh_keyspace
from tests.servers.fix_postgresql import make_tables
from tests.servers.plain_cassandra import make_ours
from tests.servers.postgresql import Postgresql
from tests.servers.process import IP
from tests.servers.redis import RedisServer

STORES = ("redis", "sqlite", "postgresql", "cassandra", "etcd")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is. ``port``: of the Redis server, whose stream is read."""

    url: str
    port: int = 0


@contextmanager
def started(store: str, folder: Path) -> Iterator[Place]:
    """Start the store of this name, for as long as the block runs."""
    if store == "sqlite":
        yield Place(f"sqlite:///{folder / 'locks.db'}")
    elif store == "redis":
        with closing(RedisServer(folder)) as redis:
            yield Place(redis.url, redis.port)
    elif store == "postgresql":
        with closing(Postgresql(folder)) as postgresql:
            make_tables(postgresql.url)
            yield Place(postgresql.url)
    elif store == "etcd":
        with closing(Etcd(folder / "etcd")) as etcd:
            yield Place(etcd.url)
    else:
        with closing(CassandraNode(folder)) as node, Visit(IP, node.port) as visit:
            shared = SharedNode(node.port, 0)
            with fresh_keyspace(shared, visit) as keyspace:
                make_ours(keyspace)
                yield Place(keyspace.url)
