"""The published statements of another program, by another driver than ours."""

from __future__ import annotations

from typing import Any

import psycopg

from aiorwlock_remote.testing.conformance import Foreigner, Name

_INSERT = """
INSERT INTO mutex_locks (resource_type, resource_id, ticket)
VALUES (%(kind)s, %(num)s, %(ticket)s)
"""
_UPDATE = """
UPDATE mutex_locks SET ticket = %(ticket)s
WHERE resource_type = %(kind)s AND resource_id = %(num)s
"""
_DELETE = """
DELETE FROM mutex_locks
WHERE resource_type = %(kind)s AND resource_id = %(num)s AND ticket = %(ticket)s
"""
_SELECT = """
SELECT ticket FROM mutex_locks
WHERE resource_type = %(kind)s AND resource_id = %(num)s
"""


class PlainPostgresql(Foreigner):
    """``INSERT`` and ``DELETE`` on ``mutex_locks``, one transaction each."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix

    def take(self, name: Name, ticket: str) -> bool:
        try:
            self._run(_INSERT, name, ticket=ticket)
        except psycopg.errors.UniqueViolation:
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        changed, _ = self._run(_UPDATE, name, ticket=ticket)
        if not changed:
            assert self.take(name, ticket)

    def free(self, name: Name, ticket: str) -> bool:
        deleted, _ = self._run(_DELETE, name, ticket=ticket)
        return deleted == 1

    def read(self, name: Name) -> str | None:
        _, row = self._run(_SELECT, name)
        return None if row is None else str(row[0])

    def _run(
        self, sql: str, name: Name, **values: str
    ) -> tuple[int, tuple[Any, ...] | None]:
        kind, number = name
        with psycopg.connect(self._url, autocommit=True) as connection:
            binds = {"kind": self._prefix + kind, "num": number, **values}
            cursor = connection.execute(sql, binds)
            row = cursor.fetchone() if cursor.description else None
            return cursor.rowcount, row
