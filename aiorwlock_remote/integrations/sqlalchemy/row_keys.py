"""Columns of a table, and which of them tells its rows apart."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Index, PrimaryKeyConstraint, Table, UniqueConstraint

from aiorwlock_remote.errors import ConfigurationError


def column_of(table: Table, name: str) -> Column[Any]:
    """The column of that name.

    Raises:
        ConfigurationError: there is none.
    """
    column: Column[Any] | None = table.c.get(name)
    if column is None:
        raise ConfigurationError(
            what=f"{table.fullname} has no column {name}",
            hint="RowLockColumns gives a mapped class those of a lock",
        )
    return column


def key_of(table: Table, name: str | None) -> Column[Any]:
    """The column of that name, or else the primary key.

    Raises:
        ConfigurationError: there is none, or several rows may have the same there. One
            step of a lock would change them all.
    """
    if name is not None:
        column = column_of(table, name)
        if _unique(table, column):
            return column
        raise ConfigurationError(
            what=f"{table.fullname}.{name} may be the same in several rows",
            hint="a column that is unique in the database, and unique=True here",
        )
    keys = list(table.primary_key.columns)
    if len(keys) != 1:
        raise ConfigurationError(
            what=f"{table.fullname}: {len(keys)} columns in its primary key",
            hint="name the one column that tells its rows apart: key=…",
        )
    return keys[0]


def _unique(table: Table, column: Column[Any]) -> bool:
    """As far as the table says."""
    kinds = PrimaryKeyConstraint, UniqueConstraint
    keys = [*(each for each in table.constraints if isinstance(each, kinds))]
    whole = [index for index in table.indexes if index.unique and not _partial(index)]
    return any([*each.columns] == [column] for each in (*keys, *whole))


def _partial(index: Index) -> bool:
    options: Any = index.dialect_options
    return any(options[name]["where"] is not None for name in ("postgresql", "sqlite"))
