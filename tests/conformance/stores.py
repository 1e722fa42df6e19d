"""Our own backends, as the conformance suite gets at them."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import redis
from redis.asyncio import Redis

from aiorwlock_remote.backends.memory import Shelf, shelf
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.record import Seat
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Foreigner, Harness, Name, Site
from tests.backends.redis.rights import rules, under, url_of
from tests.servers.cluster import Cluster
from tests.servers.fix_cassandra import Keyspace
from tests.servers.plain import PlainCluster, PlainRedis
from tests.servers.plain_cassandra import PlainCassandra
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelGroup


class MemoryHarness(Harness):
    """``memory://``: nobody is really foreign there, so its seat is changed by hand."""

    capabilities = Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL
    has_foreigner = True

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """A shelf of its own."""
        name = uuid4().hex
        return Site(f"memory://{name}", foreigner=OnTheShelf(shelf(f"|{name}")))


class OnTheShelf(Foreigner):
    """Changes the seat, and nothing else, as a foreign program would."""

    def __init__(self, kept: Shelf) -> None:
        self._shelf = kept

    def take(self, name: Name, ticket: str) -> bool:
        with self._shelf.lock:
            if resource(*name) in self._shelf.seats:
                return False
            self._shelf.seats[resource(*name)] = self._seat(ticket)
            return True

    def put(self, name: Name, ticket: str) -> None:
        with self._shelf.lock:
            self._shelf.seats[resource(*name)] = self._seat(ticket)

    def free(self, name: Name, ticket: str) -> bool:
        with self._shelf.lock:
            seat = self._shelf.seats.get(resource(*name))
            if seat is None or seat.ticket != ticket:
                return False
            del self._shelf.seats[resource(*name)]
            return True

    def read(self, name: Name) -> str | None:
        with self._shelf.lock:
            seat = self._shelf.seats.get(resource(*name))
            return None if seat is None else seat.ticket

    def _seat(self, ticket: str) -> Seat:
        return Seat(f"{ticket},{int(time.time())}")


class SqliteHarness(Harness):
    """``sqlite:///``, a file for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    has_foreigner = True

    def fresh(self, folder: Path) -> Site:
        """A file of its own."""
        path = folder / "locks.db"
        return Site(f"sqlite:///{path}", foreigner=PlainSqlite(path))


class PlainSqlite(Foreigner):
    """The published statements on ``mutex_locks``, by Python's own sqlite3."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, name: Name, ticket: str) -> bool:
        try:
            self._run(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES (?, ?, ?)",
                *name,
                ticket,
            )
        except sqlite3.IntegrityError:
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        self._run(
            "INSERT OR REPLACE INTO mutex_locks (resource_type, resource_id, ticket)"
            " VALUES (?, ?, ?)",
            *name,
            ticket,
        )

    def free(self, name: Name, ticket: str) -> bool:
        deleted, _ = self._run(
            "DELETE FROM mutex_locks"
            " WHERE resource_type = ? AND resource_id = ? AND ticket = ?",
            *name,
            ticket,
        )
        return deleted == 1

    def read(self, name: Name) -> str | None:
        _, row = self._run(
            "SELECT ticket FROM mutex_locks"
            " WHERE resource_type = ? AND resource_id = ?",
            *name,
        )
        return None if row is None else str(row[0])

    def _run(self, sql: str, *values: object) -> tuple[int, tuple[object, ...] | None]:
        db = sqlite3.connect(self._path, timeout=10)
        try:
            with db:
                cursor = db.execute(sql, values)
                row = cursor.fetchone()
                return cursor.rowcount, row
        finally:
            db.close()


class RedisHarness(Harness):
    """``redis://``: one server, a prefix for each test. ``server`` is set before."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    has_foreigner = True
    server: ClassVar[RedisServer]

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Keys of its own."""
        prefix = f"{uuid4().hex}:"
        url = self.server.url
        return Site(url, prefix, foreigner=PlainRedis(url, prefix))


class ClientHarness(RedisHarness):
    """The same through a client of redis-py; other processes use the URL."""

    def fresh(self, folder: Path) -> Site:
        """Keys and a client of its own, which opens no connection itself."""
        client = Redis.from_url(self.server.url, **self.settings())
        return replace(super().fresh(folder), backend=RedisBackend(client))

    def settings(self) -> dict[str, Any]:
        """What users set, and what must not matter."""
        return {"protocol": 2, "decode_responses": True}


class LoopBoundHarness(ClientHarness):
    """A client with code of the user's, which only the user's loop may run."""

    capabilities = RedisHarness.capabilities & ~Capability.OFF_LOOP_RENEWAL

    def settings(self) -> dict[str, Any]:
        """Credentials that come from a provider."""
        provider = redis.UsernamePasswordCredentialProvider("default", "any")
        return {"protocol": 3, "credential_provider": provider}


class SentinelHarness(RedisHarness):
    """``redis+sentinel://``: the foreigner goes to the primary. ``group`` as above."""

    group: ClassVar[SentinelGroup]

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Keys of its own."""
        prefix = f"{uuid4().hex}:"
        foreigner = PlainRedis(self.group.primary.url, prefix)
        return Site(self.group.url, prefix, foreigner=foreigner)


class RightsHarness(RedisHarness):
    """A user of its own for each test, with the rights of the documentation.

    Besides them the one that lists need. Every pattern begins with the prefix, and with
    those that the suite puts behind it.
    """

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Keys and a user of its own."""
        name = uuid4().hex
        prefixes = [f"{name}:{more}" for more in ("", "eu:", "us:")]
        patterns = [rule for prefix in prefixes for rule in under(prefix, rules())]
        others = [rule for rule in rules() if rule[0] not in "~&"]
        self.server.ask("ACL", "SETUSER", name, *others, *patterns, "+scan")
        url = url_of(self.server, name)
        return Site(url, prefixes[0], foreigner=PlainRedis(url, prefixes[0]))


class TlsHarness(RedisHarness):
    """``rediss://`` at a server that demands a certificate of its clients."""

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Keys of its own; redis-py names the same files otherwise."""
        prefix, files = f"{uuid4().hex}:", self.server.certificates
        assert files is not None
        theirs = (
            f"rediss://localhost:{self.server.tls_port}/0"
            f"?ssl_ca_certs={files.authority}&ssl_certfile={files.certificate}"
            f"&ssl_keyfile={files.key}"
        )
        return Site(self.server.tls_url, prefix, PlainRedis(theirs, prefix))


class ClusterHarness(RedisHarness):
    """``redis+cluster://``: the foreigner finds the node. ``cluster`` as above."""

    cluster: ClassVar[Cluster]

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Keys of its own."""
        prefix = f"{uuid4().hex}:"
        url = self.cluster.url
        return Site(url, prefix, foreigner=PlainCluster(url, prefix))


class CassandraHarness(Harness):
    """``cassandra://``: one node and table, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    has_foreigner = True
    answers_in = 0.5
    remembers_fence = False
    keyspace: ClassVar[Keyspace]

    def fresh(self, folder: Path) -> Site:  # noqa: ARG002 - it needs no file
        """Rows of its own."""
        prefix = f"{uuid4().hex}:"
        url = f"{self.keyspace.url}?clock_skew=0"  # all processes have one clock
        return Site(url, prefix, PlainCassandra(self.keyspace, prefix))
