"""Rows that refuse old fences, through any DB-API driver: a column and a WHERE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final, get_args

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.checks import (
    check_columns,
    check_distinct,
    check_fence,
    check_name,
)

ParamStyle = Literal["qmark", "format", "pyformat", "named", "numeric", "dollar"]
"""How a driver writes parameters: the five of PEP 249, and ``$1`` as asyncpg has it."""

Statement = tuple[str, Any]
"""A text and its parameters: ``cursor.execute(*statement)``."""

_WORD = r"[A-Za-z_][A-Za-z0-9_$]{0,127}"
_TABLE = re.compile(rf"{_WORD}(\.{_WORD}){{0,2}}")
_COLUMN = re.compile(_WORD)

# Smaller values fit even a SMALLINT. If such a fence is out of range, or another value
# of the statement is larger, the error may not be about the fence.
FITS_EVERY_INTEGER = 2**15

_BIGINT = "ALTER TABLE {} ALTER COLUMN {} TYPE bigint"
# By code of the error: what its message has to contain, and what repairs the column.
_OUT_OF_RANGE = {
    "22003": ("int out of range|integer out of range", _BIGINT),
    "22000": ("out of int(16|32) range", _BIGINT),  # raised by asyncpg itself
    "1264": ("", "ALTER TABLE {} MODIFY {} BIGINT NOT NULL DEFAULT 0"),
    "ORA-01438": ("", "ALTER TABLE {} MODIFY {} NUMBER(19)"),
}
_ORACLE = re.compile("(ORA|DPY)-[0-9]+")
_SQLITE = {8: "SQLITE_READONLY", 19: "SQLITE_CONSTRAINT"}


class Cursor(Protocol):
    """The members of a DB-API cursor that ``FencedTable`` uses."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, operation: str, parameters: Any, /) -> Any: ...  # noqa: ANN401
    def fetchone(self) -> Any: ...  # noqa: ANN401


@final
@dataclass(frozen=True, slots=True)
class FencedTable:
    """A table whose rows keep the highest fence they have seen, in a BIGINT column.

    A row needs a fence from the start (``NOT NULL DEFAULT 0``). ``read`` and ``write``
    run on a DB-API cursor; for other drivers the ``…_statement`` methods return text
    and parameters. The transaction is yours: nothing holds until you commit, and the
    row is locked from the first statement until then.

    Names consist of letters, digits and underscores, and are written into the text as
    they are; values are always bound.

    Attributes:
        table: The table, with its schema if needed.
        key: The column that identifies a row.
        fence: The column that keeps the highest fence.
        style: How the driver writes parameters.
        for_update: Whether rows are read by ``SELECT … FOR UPDATE``. MySQL and MariaDB
            need it: their plain reads show a snapshot that may be older than the fence.
            SQLite does not know it. By default it is used for the styles format,
            pyformat and dollar, which drivers of these two and of PostgreSQL have; set
            it to True for a MySQL or MariaDB driver with another style.
    """

    table: str
    key: str = "id"
    fence: str = "fence"
    style: ParamStyle = "qmark"
    for_update: bool | None = None

    def __post_init__(self) -> None:
        # Names are written into statements unquoted, so they are checked first.
        check_name("table", self.table, _TABLE)
        check_distinct(*check_columns([self.key, self.fence], _COLUMN))
        if self.style not in get_args(ParamStyle):
            raise ConfigurationError(
                what=f"unknown parameter style {quoted(self.style)}",
                hint=", ".join(get_args(ParamStyle)),
            )

    def read(
        self, cursor: Cursor, row: object, fence: int, columns: Sequence[str]
    ) -> Any:  # noqa: ANN401 - a row is whatever the driver makes of it
        """Raise a row's stored fence, then return ``columns``; None if no row exists.

        ``row`` is the value of the key column. The transaction is yours to commit.

        Raises:
            StaleFence: The row has seen a higher fence.
            BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
            ConfigurationError: The name of a column cannot be used, or the column of
                the fence has fewer than 64 bits (then roll back).
        """
        statement = self.select_statement(row, columns)
        if not self.write(cursor, row, fence, {}):
            return None
        cursor.execute(*statement)
        return cursor.fetchone()

    def write(
        self, cursor: Cursor, row: object, fence: int, values: Mapping[str, object]
    ) -> bool:
        """Change columns of a row and raise its fence; return False if there is no row.

        ``row`` is the value of the key column, ``values`` maps columns to new values.
        The transaction is yours to commit.

        Raises:
            StaleFence: The row has seen a higher fence.
            BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
            ConfigurationError: The name of a column cannot be used, or the column of
                the fence has fewer than 64 bits (then roll back).
        """
        statement = self.update_statement(row, fence, values)
        try:
            cursor.execute(*statement)
        except Exception as exc:
            others = (row, *values.values())
            narrow = narrow_column_error(exc, self.table, self.fence, fence, others)
            if narrow is None:
                raise
            raise narrow from exc
        if cursor.rowcount == 1:
            return True
        # No row was changed: it is missing, or has seen a higher fence, or has these
        # values already.
        cursor.execute(*self.select_statement(row, [self.fence]))
        found = cursor.fetchone()
        if found is None:
            return False
        highest = found[0]
        # MySQL's drivers count a row only if a value changed, so an equal write has
        # rowcount 0. The locking read shows that the row was matched.
        if highest == fence and self._locks_reads:
            return True
        # Without a lock the read may be of a snapshot, older than what refused the
        # update: its fence proves nothing (test_sql.py, SeesASnapshot).
        if highest is not None and highest <= fence:
            highest = None
        raise StaleFence(resource=f"{self.table}/{row}", fence=fence, highest=highest)

    def update_statement(
        self, row: object, fence: int, values: Mapping[str, object]
    ) -> Statement:
        """Return the ``UPDATE … WHERE key = … AND fence <= …`` that ``write`` executes.

        ``row`` is the value of the key column, ``values`` maps columns to new values.
        The update changes no row if the row has seen a higher fence, or is missing.

        Raises:
            BadFence: ``fence`` is not an int from 0 to 2**53 - 1.
            ConfigurationError: The name of a column cannot be used.
        """
        check_fence(fence)
        if not isinstance(values, Mapping):
            raise ConfigurationError(
                what=f"values must be a mapping, not {type(values).__name__}",
                hint='{"column": value}',
            )
        check_columns(values, _COLUMN)
        check_distinct(*values, self.key, self.fence)
        names = [*values, self.fence, self.key, self.fence]
        marks = [self._mark(n) for n in range(1, len(names) + 1)]
        pairs = [f"{a} = {b}" for a, b in zip(names, marks, strict=True)]
        text = (
            f"UPDATE {self.table} SET {', '.join(pairs[:-2])}"  # noqa: S608 - checked
            f" WHERE {pairs[-2]} AND {self.fence} <= {marks[-1]}"
        )
        return text, self._bound([*values.values(), fence, row, fence])

    def select_statement(self, row: object, columns: Sequence[str]) -> Statement:
        """Return ``SELECT … WHERE key = …``, to be executed after the update.

        ``row`` is the value of the key column, ``columns`` are those to read.

        Raises:
            ConfigurationError: ``columns`` is empty, or a name cannot be used.
        """
        names = check_columns(columns, _COLUMN)
        if not names:
            raise ConfigurationError(what=f"no columns to read from {self.table}")
        text = (
            f"SELECT {', '.join(names)} FROM {self.table}"  # noqa: S608 - checked
            f" WHERE {self.key} = {self._mark(1)}"
        )
        if self._locks_reads:
            text += " FOR UPDATE"
        return text, self._bound([row])

    @property
    def _locks_reads(self) -> bool:
        if self.for_update is None:
            return self.style in ("format", "pyformat", "dollar")
        return self.for_update

    def _mark(self, number: int) -> str:
        return {
            "qmark": "?",
            "format": "%s",
            "pyformat": f"%(p{number})s",
            "named": f":p{number}",
            "numeric": f":{number}",
            "dollar": f"${number}",
        }[self.style]

    def _bound(self, values: list[object]) -> Any:  # noqa: ANN401 - as the style wants it
        if self.style in ("pyformat", "named"):
            return {f"p{n}": value for n, value in enumerate(values, 1)}
        return tuple(values)


def driver_code(error: object) -> str:
    """Return the code in a driver's error (SQLSTATE, number or name); empty if none."""
    if isinstance(error, OSError):
        return ""  # its number is the operating system's
    first: object = next(iter(getattr(error, "args", ())), None)
    if isinstance(first, int):  # MariaDB's drivers; more specific than their SQLSTATE
        return str(first)
    state: object = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state
    # SQLite's extended codes have the primary code in their low byte.
    number: object = getattr(error, "sqlite_errorcode", None)
    if isinstance(number, int):
        return _SQLITE.get(number & 0xFF, f"SQLite {number}")
    code: object = getattr(first, "full_code", first)
    return code if isinstance(code, str) and _ORACLE.fullmatch(code) else ""


def narrow_column_error(
    error: object, table: str, column: str, fence: int, others: Iterable[object]
) -> ConfigurationError | None:
    """Return the error for a fence that was too large for its column, else None.

    ``error`` is the driver's exception for a statement that wrote ``fence`` into
    ``table.column``. Drivers do not always say which value was out of range. So the
    result is also None if one of ``others``, the other values of the statement, may be
    too large.
    """
    if fence < FITS_EVERY_INTEGER or any(_may_be_large(other) for other in others):
        return None
    code = driver_code(error) or str(getattr(error, "pgcode", ""))  # of psycopg2
    message, alter = _OUT_OF_RANGE.get(code, ("", ""))
    if not alter or not re.search(message, str(error)):
        return None
    return ConfigurationError(
        what=f"fence {fence} does not fit {table}.{column}: a fence needs 64 bits",
        hint=alter.format(table, column),
    )


def _may_be_large(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) >= FITS_EVERY_INTEGER
    return not (value is None or isinstance(value, str | bytes))
