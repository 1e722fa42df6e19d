"""Statements that were parsed, and what they found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.servers.oracle import pg
from tests.servers.oracle.requests import BindType
from tests.servers.oracle.tokens import Statement
from tests.servers.oracle.values import Column, Value, column


@dataclass(slots=True)
class Cursor:
    """A statement that was parsed, with the rows that are still to be fetched."""

    number: int
    sql: str
    statement: Statement
    binds: list[BindType] = field(default_factory=list[BindType])
    columns: list[Column] = field(default_factory=list[Column])
    rows: list[tuple[Value, ...]] = field(default_factory=list[tuple[Value, ...]])
    fetched: int = 0
    described: bool = False


def columns(prepared: pg.Prepared) -> list[Column]:
    """As they are described to a client."""
    return [column(found.name.upper(), found.type) for found in pg.attributes(prepared)]
