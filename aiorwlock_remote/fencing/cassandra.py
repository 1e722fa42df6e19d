"""Rows of Cassandra that refuse old fences: ``IF fence <= ?``, for a session of yours.

The texts have ``?``, as prepared statements do. A row needs a fence from the start
(``INSERT … (…, fence) VALUES (…, 0) IF NOT EXISTS``): a comparison with no value is
false, and so is one with no row. Every other write to the row must be such a
transaction as well; Cassandra does not mix the two.
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
    check_table,
)

_WORD = r"[A-Za-z][A-Za-z0-9_]{0,47}"
_TABLE = re.compile(rf"({_WORD}\.)?{_WORD}")
_COLUMN = re.compile(_WORD)


def fenced_update(
    table: str, columns: Sequence[str], key: Sequence[str], *, fence: str = "fence"
) -> str:
    """``UPDATE … SET …, fence = ? WHERE … IF fence <= ?``.

    ``fenced_values`` goes with it. Without columns it raises the fence only: that comes
    before a read, which has to be at a SERIAL consistency to see the last write.

    Raises:
        ConfigurationError: a name that cannot be used, or no key.
    """
    check_table(table, _TABLE)
    set_to, found_by = check_columns(columns, _COLUMN), check_columns(key, _COLUMN)
    check_distinct(*set_to, *found_by, *check_columns([fence], _COLUMN))
    if not found_by:
        raise ConfigurationError(what="no key")
    changes = ", ".join(f"{name} = ?" for name in (*set_to, fence))
    where = " AND ".join(f"{name} = ?" for name in found_by)
    return f"UPDATE {table} SET {changes} WHERE {where} IF {fence} <= ?"  # noqa: S608


def fenced_values(
    values: Sequence[object], key: Sequence[object], fence: int
) -> tuple[object, ...]:
    """What goes with ``fenced_update``: values as the columns stand there.

    Raises:
        BadFence: it is none.
        ConfigurationError: one value, or one key, where several are wanted.
    """
    return *as_tuple("values", values), check_fence(fence), *as_tuple("key", key), fence


def accepted(rows: Iterable[Any], resource: str, fence: int) -> bool:
    """What the transaction says: True done, False no such row, or none with a fence.

    ``rows``: the result of the statement, whose first row begins with ``[applied]``;
    refused, the fence that stands there follows.

    Raises:
        StaleFence: the row has seen a higher fence.
        ConfigurationError: the statement was no transaction.
    """
    first = next(iter(rows), None)
    if first is None:
        raise ConfigurationError(
            what=f"{resource}: no transaction was made", hint="by fenced_update"
        )
    if isinstance(first, dict):  # a dict_factory's
        first = cast("dict[str, Any]", first).values()
    values: tuple[Any, ...] = tuple(first)
    if values[0]:
        return True
    if len(values) < 2 or values[1] is None:
        return False
    raise StaleFence(resource=resource, fence=fence, highest=values[1])
