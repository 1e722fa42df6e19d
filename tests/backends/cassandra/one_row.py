"""The store's statements, one by one, and those of the published program."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from cassandra.cluster import ResponseFuture, Session
from cassandra.query import PreparedStatement

from aiorwlock_remote.backends.cassandra.options import Options, statement

KEY = ("order", 42)
SINCE = datetime.fromtimestamp(1000, UTC)

TAKE = """
INSERT INTO {table} (resource_type, resource_id, ticket, acquired_at)
VALUES ('order', 42, %s, toTimestamp(now())) IF NOT EXISTS
"""
FREE = "DELETE FROM {table} WHERE resource_type='order' AND resource_id=42"


class OneRow:
    """One row, through one session."""

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.table = options.quoted
        self._options = options
        self._prepared: dict[str, PreparedStatement] = {}

    def prepare(self, *names: str) -> None:
        for name in names:
            cql = statement(name, self._options)
            self._prepared[name] = self.session.prepare(cql)

    def send(self, name: str, *values: object) -> ResponseFuture:
        """A statement of the store's on its way."""
        if name not in self._prepared:
            self.prepare(name)
        return self.session.execute_async(self._prepared[name], values, timeout=60)

    def do(self, name: str, *values: object) -> Any:  # noqa: ANN401 - a row
        return self.send(name, *values).result().one()

    def appear(self, ticket: str, version: UUID | None = None) -> Any:  # noqa: ANN401
        """From nothing to held by ``ticket``."""
        return self.do("insert", *self.appearing(ticket, version))

    def appearing(self, ticket: str, version: UUID | None = None) -> tuple[Any, ...]:
        return (ticket, SINCE, version or uuid4(), "{}", 5, *KEY)

    def vanish(self, ticket: str) -> Any:  # noqa: ANN401
        """Released, with nobody waiting."""
        row = self.load()
        return self.do("delete", *KEY, row.version, ticket, row.acquired_at)

    def load(self) -> Any:  # noqa: ANN401
        return self.do("load", *KEY)

    def seconds_left(self) -> list[int | None]:
        """How long each cell lasts; None: it never ends."""
        cells = ("ticket", "acquired_at", "version", "record", "frame")
        asked = ", ".join(f"TTL({cell})" for cell in cells)
        where = "resource_type='order' AND resource_id=42"
        row = self.session.execute(f"SELECT {asked} FROM {self.table} WHERE {where}")  # noqa: S608
        return list(row.one())

    def fence(self) -> int:
        """What the grant from nothing that stands there has as its fence."""
        seated: int = self.do("read_ballot", *KEY).ticket_written
        return seated

    def take(self, ticket: str) -> bool:
        """As a published program does."""
        take = TAKE.format(table=self.table)
        return bool(self.session.execute(take, [ticket]).one().applied)

    def free(self, ticket: str, *, plain: bool = False) -> bool:
        """Likewise; ``plain``: as the published snippet has it, which is no LWT."""
        free = FREE.format(table=self.table)
        if plain:
            self.session.execute(free)
            return True
        return bool(
            self.session.execute(f"{free} IF ticket=%s", [ticket]).one().applied
        )
