"""Cassandra rows that refuse old fences, by ``IF fence <= ?`` in a session of yours.

The statements contain ``?``, as prepared statements do. A row needs a fence from the
start (``INSERT … (…, fence) VALUES (…, 0) IF NOT EXISTS``), because a comparison with
null is false, and so is a comparison in a row that does not exist. Every other write to
the row must be a lightweight transaction too: Cassandra does not order plain writes
with transactions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from aiorwlock_remote.errors import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.checks import (
    as_tuple,
    check_columns,
    check_distinct,
    check_fence,
    check_name,
)

_WORD = r"[A-Za-z][A-Za-z0-9_]{0,47}"
_TABLE = re.compile(rf"({_WORD}\.)?{_WORD}")
_COLUMN = re.compile(_WORD)


def fenced_update(
    table: str, columns: Sequence[str], key: Sequence[str], *, fence: str = "fence"
) -> str:
    """Return ``UPDATE … SET …, fence = ? WHERE … IF fence <= ?``, to be prepared.

    Bind the statement to what ``fenced_values`` returns. Without columns the statement
    only raises the fence: send it before a read, and read at a SERIAL consistency, or
    the read may miss the last transaction.

    Args:
        table: The table, with its keyspace if needed.
        columns: The columns to set.
        key: All columns of the primary key.
        fence: The column that keeps the highest fence.

    Raises:
        ConfigurationError: A name cannot be used, or ``key`` is empty.
    """
    check_name("table", table, _TABLE)
    set_columns, key_columns = (check_columns(n, _COLUMN) for n in (columns, key))
    check_distinct(*set_columns, *key_columns, *check_columns([fence], _COLUMN))
    if not key_columns:
        raise ConfigurationError(
            what=f"the update of {table} names no key column",
            hint="give all columns of the primary key",
        )
    # All names were checked: none of them can end the statement.
    changes = ", ".join(f"{name} = ?" for name in (*set_columns, fence))
    where = " AND ".join(f"{name} = ?" for name in key_columns)
    return f"UPDATE {table} SET {changes} WHERE {where} IF {fence} <= ?"  # noqa: S608


def fenced_values(
    values: Sequence[object], key: Sequence[object], fence: int
) -> tuple[object, ...]:
    """Return the values to bind to the statement that ``fenced_update`` returned.

    Args:
        values: The new values, in the order of its ``columns``.
        key: The values of the primary key, in the order of its ``key``.
        fence: The fence of the grant, such as ``Held.fence``.

    Raises:
        BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
        ConfigurationError: ``values`` or ``key`` is not a sequence.
    """
    return *as_tuple("values", values), check_fence(fence), *as_tuple("key", key), fence


def accepted(rows: Iterable[Any], resource: str, fence: int) -> bool:
    """Return True if the update was applied, False if there is no row with a fence.

    Args:
        rows: The result of the statement. Its first row begins with ``[applied]``,
            followed by the stored fence if the update was refused.
        resource: Names the row in the error.
        fence: The fence that was bound.

    Raises:
        StaleFence: The row has seen a higher fence.
        ConfigurationError: The result is not that of a lightweight transaction.
    """
    first = next(iter(rows), None)
    if first is None:
        raise ConfigurationError(
            what=f"{resource}: the statement was not a lightweight transaction",
            hint="prepare what fenced_update returns",
        )
    if isinstance(first, dict):  # rows of a session with dict_factory
        first = cast("dict[str, Any]", first).values()
    values: tuple[Any, ...] = tuple(first)
    if values[0]:
        return True
    # A refusal by a missing row has no more columns; a null fence refuses every update.
    if len(values) < 2 or values[1] is None:
        return False
    raise StaleFence(resource=resource, fence=fence, highest=values[1])
