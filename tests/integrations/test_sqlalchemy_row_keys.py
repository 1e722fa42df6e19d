"""Which column may tell the rows of a table apart."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.integrations.sqlalchemy.row_lock import RowLockStatements

LOCK = (
    ("lock_mark", String(9)),
    ("read_lock_count", Integer),
    ("lock_reason", String(200)),
)


def bills(*parts: SchemaItem, unique: bool | None = None) -> Table:
    return Table(
        "bills",
        MetaData(),
        *(Column(name, kind) for name, kind in LOCK),
        *(Column(name, Integer, primary_key=True) for name in "ab"),
        Column("number", Integer, unique=unique),
        *parts,
    )


@pytest.mark.parametrize(
    "table",
    [
        bills(),
        bills(UniqueConstraint("number", "a")),
        bills(Index("by_number", "number")),
        bills(Index("half", "number", unique=True, postgresql_where=text("a > 1"))),
        bills(Index("half", "number", unique=True, sqlite_where=text("a > 1"))),
    ],
)
def test_one_that_several_rows_may_have(table: Table) -> None:
    """As far as the table says: one step would change all of them."""
    with pytest.raises(ConfigurationError, match=r"bills\.number .*unique=True"):
        RowLockStatements(table, 1, key="number")


def test_one_of_the_columns_of_a_key() -> None:
    with pytest.raises(ConfigurationError, match=r"bills\.a "):
        RowLockStatements(bills(), 1, key="a")


@pytest.mark.parametrize(
    "table",
    [
        bills(unique=True),
        bills(UniqueConstraint("number")),
        bills(Index("by_number", "number", unique=True)),
    ],
)
def test_one_that_is_unique(table: Table) -> None:
    assert RowLockStatements(table, 1, key="number").label == "bills/1"
