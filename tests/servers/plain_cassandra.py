"""Programs that know the published table and nothing of this library: Cassandra."""

from __future__ import annotations

from aiorwlock_remote.backends.cassandra.options import options_of, statement
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.testing.conformance import ForeignClient, Name
from tests.servers.fix_cassandra import Keyspace

PUBLISHED = """
CREATE TABLE {table} (
    resource_type VARCHAR,
    resource_id INT,
    ticket VARCHAR,
    acquired_at TIMESTAMP,
    PRIMARY KEY (resource_type, resource_id)
)
"""
WARM = 100
"""Turns until Java has compiled the most of it: leases of tests are short."""

TAKE = """
INSERT INTO {table} (resource_type, resource_id, ticket, acquired_at)
VALUES (%s, %s, %s, toTimestamp(now())) IF NOT EXISTS
"""
PUT = """
UPDATE {table} SET ticket = %s, acquired_at = toTimestamp(now())
WHERE resource_type = %s AND resource_id = %s IF EXISTS
"""
FREE = """
DELETE FROM {table} WHERE resource_type = %s AND resource_id = %s IF ticket = %s
"""
CLEAN = """
UPDATE {table} SET version = null, record = null, frame = null
WHERE resource_type = %s AND resource_id = %s IF EXISTS
"""
READ = "SELECT ticket FROM {table} WHERE resource_type = %s AND resource_id = %s"


def make_ours(keyspace: Keyspace) -> None:
    """The table that ``rwlock schema cassandra`` prints, in a node that is warm."""
    options = options_of(parse(keyspace.url))
    keyspace.visit.rows(statement("schema_pair", options))
    warm_up(keyspace)


def make_published(keyspace: Keyspace) -> None:
    """The published table, widened by our columns, in a node that is warm."""
    options = options_of(parse(keyspace.url))
    keyspace.visit.rows(PUBLISHED.format(table=options.quoted))
    keyspace.visit.rows(statement("widen", options))
    warm_up(keyspace)


def warm_up(keyspace: Keyspace) -> None:
    """Our table is there."""
    published = PlainCassandra(keyspace, "warm")
    for _ in range(WARM):
        assert published.take(("up", 1), "t")
        assert published.free(("up", 1), "t")


class PlainCassandra(ForeignClient):
    """The published statements, over a plain session of the driver."""

    def __init__(self, keyspace: Keyspace, prefix: str) -> None:
        self._visit = keyspace.visit
        self._table = f"{keyspace.name}.mutex_locks"
        self._prefix = prefix

    def take(self, name: Name, ticket: str) -> bool:
        return self._applied(TAKE, *self._key(name), ticket)

    def put(self, name: Name, ticket: str) -> None:
        if not self._applied(PUT, ticket, *self._key(name)):
            assert self.take(name, ticket)

    def free(self, name: Name, ticket: str) -> bool:
        return self._applied(FREE, *self._key(name), ticket)

    def clean(self, name: Name) -> None:
        self._applied(CLEAN, *self._key(name))

    def read(self, name: Name) -> str | None:
        cql = READ.format(table=self._table)
        rows = self._visit.rows(cql, *self._key(name))
        return rows[0].ticket if rows else None

    def _applied(self, cql: str, *values: object) -> bool:
        (row,) = self._visit.rows(cql.format(table=self._table), *values)
        return bool(row.applied)

    def _key(self, name: Name) -> Name:
        return self._prefix + name[0], name[1]
