"""A readers-writer lock in the resource's own row (S2): its columns, what may be there.

The published rules, each ONE conditional UPDATE; no row changed means refused:

=======  =====================================  ================================
step     demands                                sets
=======  =====================================  ================================
RLock    ``Unlock``, or ``ReadLock``            ``ReadLock``, count + 1
RUnlock  ``ReadLock`` and count > 0             count - 1, ``Unlock`` at 0
WLock    ``Unlock``                             ``WriteLock``
WUnlock  ``WriteLock``                          ``Unlock``
=======  =====================================  ================================

All of them store a reason. A row that these steps cannot have made (no mark, another
word, a count that does not go with the mark) is refused by ours: two wrongs would make
a lock that nobody holds and nobody gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from aiorwlock_remote.core.text import check_text, quoted
from aiorwlock_remote.errors import ConfigurationError

UNLOCK, READ_LOCK, WRITE_LOCK = "Unlock", "ReadLock", "WriteLock"
MARKS = (UNLOCK, READ_LOCK, WRITE_LOCK)
CONSTRAINT = "a constraint of the table refuses what a lock writes there"
"""A hint."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")

_INT64 = range(-(2**63), 2**64)
"""Signed or not: MariaDB has both."""

RowKey = int | str | UUID


@dataclass(frozen=True, slots=True)
class RowTable:
    """A user's table and the columns that a lock needs of it.

    ``name`` may begin with a schema and a dot. ``key`` tells one row from all others.
    """

    name: str
    key: str = "id"
    mark: str = "lock_mark"
    count: str = "read_lock_count"
    reason: str = "lock_reason"
    grants: str = "lock_grants"

    def __post_init__(self) -> None:
        """Refuse what is no plain identifier: they go into statements."""
        columns: tuple[object, ...]
        columns = (self.key, self.mark, self.count, self.reason, self.grants)
        names: tuple[object, ...] = (*parts_of(self.name), *columns)
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigurationError(
                    what=f"{quoted(name)} cannot name a table or a column here",
                    hint="letters, digits, _ and $; no digit first; at most 63",
                )
        if len({str(name).casefold() for name in columns}) < len(columns):
            raise ConfigurationError(what=f"{self.name}: one column for two purposes")


def parts_of(table: str) -> tuple[str, ...]:
    """The schema, if there is one, and the table."""
    if not isinstance(table, str):
        raise ConfigurationError(
            what=f"a table's name must be str, not {type(table).__name__}"
        )
    parts = tuple(table.split("."))
    if len(parts) > 2:
        raise ConfigurationError(
            what=f"table {quoted(table)}: at most one schema and a dot"
        )
    return parts


def check_key(key: RowKey) -> RowKey:
    """What tells the row from the others.

    Raises:
        ConfigurationError: not an int, str or UUID; an int of more than 64 bits; a text
            that no database can hold.
    """
    if isinstance(key, bool) or not isinstance(key, int | str | UUID):
        raise ConfigurationError(
            what=f"a row's key must be int, str or UUID, not {type(key).__name__}"
        )
    if isinstance(key, int) and int(key) not in _INT64:
        raise ConfigurationError(what="a row's key is an int of more than 64 bits")
    if isinstance(key, str):
        check_text("a row's key", key)
        if not key:
            raise ConfigurationError(what="a row's key is empty")
    return key


@dataclass(frozen=True, slots=True)
class RowState:
    """What stands in a row: ``mark``, how many ``readers``, the last step's reason."""

    mark: str
    readers: int
    reason: str = ""

    def __str__(self) -> str:
        many = f" by {self.readers}" if self.mark == READ_LOCK else ""
        return f"{self.mark}{many}" + (f": {self.reason}" if self.reason else "")


def state_of(found: tuple[object, ...]) -> RowState | None:
    """What a lock made of these; None: no lock can have."""
    mark, count, reason = found
    text = mark.rstrip() if isinstance(mark, str) else ""  # CHAR(9) is padded
    known = next((m for m in MARKS if m.casefold() == text.casefold()), None)
    readers = _whole(count)
    if known is None or readers is None or readers < 0:
        return None
    if (readers > 0) != (known == READ_LOCK):
        return None
    return RowState(known, readers, "" if reason is None else str(reason))


def _whole(count: object) -> int | None:
    # A NUMBER of Oracle or a NUMERIC may come as a Decimal or a float.
    if isinstance(count, bool | str | bytes) or count is None:
        return None
    try:
        number = int(count)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number == count else None
