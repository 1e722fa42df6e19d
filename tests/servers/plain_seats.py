"""The published statements of another program, by a plain driver of a database."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from aiorwlock_remote.testing.conformance import ForeignClient, Name

_INSERT = """
INSERT INTO mutex_locks (resource_type, resource_id, ticket)
VALUES ({kind}, {num}, {ticket})
"""
_UPDATE = """
UPDATE mutex_locks SET ticket = {ticket}
WHERE resource_type = {kind} AND resource_id = {num}
"""
_DELETE = """
DELETE FROM mutex_locks
WHERE resource_type = {kind} AND resource_id = {num} AND ticket = {ticket}
"""
_CLEAN = "DELETE FROM doormans WHERE resource_type = {kind} AND resource_id = {num}"
_SELECT = """
SELECT ticket FROM mutex_locks
WHERE resource_type = {kind} AND resource_id = {num}
"""


class PlainSeats(ForeignClient):
    """``INSERT`` and ``DELETE`` on ``mutex_locks``, one transaction each."""

    bind: ClassVar[str] = "%({})s"
    """How the driver writes a bind of that name."""
    taken: ClassVar[type[Exception]]
    """What it raises for a key that is there."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @abstractmethod
    def connected(self) -> AbstractContextManager[Any]:
        """A new connection, closed afterwards."""

    def take(self, name: Name, ticket: str) -> bool:
        try:
            self._run(_INSERT, name, ticket=ticket)
        except self.taken:
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        changed, _ = self._run(_UPDATE, name, ticket=ticket)
        # A row that has this ticket already does not count as changed everywhere.
        if not changed and self.read(name) != ticket:
            assert self.take(name, ticket)

    def free(self, name: Name, ticket: str) -> bool:
        deleted, _ = self._run(_DELETE, name, ticket=ticket)
        return deleted == 1

    def clean(self, name: Name) -> None:
        self._run(_CLEAN, name)

    def read(self, name: Name) -> str | None:
        _, row = self._run(_SELECT, name)
        return None if row is None else str(row[0])

    def _run(
        self, text: str, name: Name, **values: str
    ) -> tuple[int, tuple[Any, ...] | None]:
        kind, number = name
        binds = {"kind": self._prefix + kind, "num": number, **values}
        sql = text.format(**{bind: self.bind.format(bind) for bind in binds})
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.execute(sql, binds)
            row = cursor.fetchone() if cursor.description else None
            changed: int = cursor.rowcount
            connection.commit()
        return changed, row
