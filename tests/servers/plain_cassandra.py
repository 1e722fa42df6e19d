"""Programs that know the published table and nothing of this library: Cassandra."""

from __future__ import annotations

from aiorwlock_remote.testing.conformance import Foreigner, Name
from tests.servers.fix_cassandra import Keyspace

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
READ = "SELECT ticket FROM {table} WHERE resource_type = %s AND resource_id = %s"


class PlainCassandra(Foreigner):
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

    def read(self, name: Name) -> str | None:
        cql = READ.format(table=self._table)
        rows = self._visit.rows(cql, *self._key(name))
        return rows[0].ticket if rows else None

    def _applied(self, cql: str, *values: object) -> bool:
        (row,) = self._visit.rows(cql.format(table=self._table), *values)
        return bool(row.applied)

    def _key(self, name: Name) -> Name:
        return self._prefix + name[0], name[1]
