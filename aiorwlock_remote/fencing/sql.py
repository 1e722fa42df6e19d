"""Rows that refuse old fences, through any DB-API driver: a column and a WHERE.

Columns that are too narrow for a fence, which needs 64 bits.
"""

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
    check_table,
)

FITS_EVERY_INTEGER = 2**15
"""What fits any column of integers."""

_BIGINT = "ALTER TABLE {} ALTER COLUMN {} TYPE bigint"
_OUT_OF_RANGE = {
    "22003": ("int out of range|integer out of range", _BIGINT),
    "22000": ("out of int(16|32) range", _BIGINT),  # asyncpg's own
    "1264": ("", "ALTER TABLE {} MODIFY {} BIGINT NOT NULL DEFAULT 0"),
    "ORA-01438": ("", "ALTER TABLE {} MODIFY {} NUMBER(19)"),
}
"""By code: what the message has to say, and what mends it."""
_ORACLE = re.compile("(ORA|DPY)-[0-9]+")
_SQLITE = {8: "SQLITE_READONLY", 19: "SQLITE_CONSTRAINT"}


def driver_code(driver: object) -> str:
    """What an error of a driver's has for a code; empty: none."""
    if isinstance(driver, OSError):
        return ""  # its number is the system's
    first: object = next(iter(getattr(driver, "args", ())), None)
    if isinstance(first, int):  # MariaDB's drivers; it tells more than their SQLSTATE
        return str(first)
    state: object = getattr(driver, "sqlstate", None)
    if isinstance(state, str):
        return state
    number: object = getattr(driver, "sqlite_errorcode", None)
    if isinstance(number, int):
        return _SQLITE.get(number & 0xFF, f"SQLite {number}")
    code: object = getattr(first, "full_code", first)
    return code if isinstance(code, str) and _ORACLE.fullmatch(code) else ""


def narrow_column_error(
    driver: object, table: str, column: str, fence: int, others: Iterable[object]
) -> ConfigurationError | None:
    """The error of ours if the fence did not fit its column; None: something else.

    A driver does not always tell which value it was.

    Args:
        driver: What the driver raised.
        table: Of the column.
        column: Of the fence.
        fence: What was to be written there.
        others: Values of the same statement; with one that may be too large as well
            nobody knows.
    """
    if fence < FITS_EVERY_INTEGER or any(_is_large(other) for other in others):
        return None
    code = driver_code(driver) or str(getattr(driver, "pgcode", ""))  # psycopg2's
    said, alter = _OUT_OF_RANGE.get(code, ("", ""))
    if not alter or not re.search(said, str(driver)):
        return None
    return ConfigurationError(
        what=f"fence {fence} does not fit {table}.{column}: a fence needs 64 bits",
        hint=alter.format(table, column),
    )


def _is_large(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) >= FITS_EVERY_INTEGER
    return not (value is None or isinstance(value, str | bytes))


ParamStyle = Literal["qmark", "format", "pyformat", "named", "numeric", "dollar"]
"""How a driver writes its parameters: PEP 249's five, and ``$1`` as asyncpg has it."""

Statement = tuple[str, Any]
"""A text, and what goes with it: ``cursor.execute(*statement)``."""

_WORD = r"[A-Za-z_][A-Za-z0-9_$]{0,127}"
_TABLE = re.compile(rf"{_WORD}(\.{_WORD}){{0,2}}")
_COLUMN = re.compile(_WORD)


class Cursor(Protocol):
    """What DB-API calls a cursor, as far as it is needed here."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""

    def execute(self, operation: str, parameters: Any, /) -> Any:  # noqa: ANN401 - theirs
        """Run a statement."""

    def fetchone(self) -> Any:  # noqa: ANN401 - theirs
        """The next row; None at the end."""


@final
@dataclass(frozen=True, slots=True)
class FencedTable:
    """A table whose rows keep the highest fence they have seen, in a BIGINT column.

    A row needs a fence from the start (``NOT NULL DEFAULT 0``). ``read`` and ``write``
    run on a DB-API cursor; for other drivers the ``…_statement`` methods give text and
    parameters. Everything is one transaction of yours: nothing holds until you commit,
    and from the first statement on the row is locked until then.

    ``for_update``: whether rows are read by ``SELECT … FOR UPDATE``. MySQL and MariaDB
    need that: their transactions read a snapshot else, which may be older than the
    fence. By default it is so for the styles of their drivers and PostgreSQL's; say
    True for a driver of theirs with another style. SQLite does not know it.

    Names are letters, digits and underscores, and go into the text as they are; values
    are always bound.
    """

    table: str
    key: str = "id"
    fence: str = "fence"
    style: ParamStyle = "qmark"
    for_update: bool | None = None

    def __post_init__(self) -> None:
        """Refuse names that are none.

        Raises:
            ConfigurationError: a table, a column or a style that cannot be used.
        """
        check_table(self.table, _TABLE)
        check_distinct(*check_columns([self.key, self.fence], _COLUMN))
        if self.style not in get_args(ParamStyle):
            raise ConfigurationError(
                what=f"unknown style {quoted(self.style)}",
                hint=", ".join(get_args(ParamStyle)),
            )

    def read(
        self, cursor: Cursor, row: object, fence: int, columns: Sequence[str]
    ) -> Any:  # noqa: ANN401 - a row is whatever the driver makes of it
        """These columns of the row with that key, its fence raised first; None: no row.

        Raises:
            StaleFence: the row has seen a higher fence.
            BadFence: it is none.
            ConfigurationError: as ``write``.
        """
        statement = self.select_statement(row, columns)
        if not self.write(cursor, row, fence, {}):
            return None
        cursor.execute(*statement)
        return cursor.fetchone()

    def write(
        self, cursor: Cursor, row: object, fence: int, values: Mapping[str, object]
    ) -> bool:
        """Change these columns and raise the fence; False: no row with that key.

        Raises:
            StaleFence: the row has seen a higher fence.
            BadFence: it is none.
            ConfigurationError: a column that cannot be used, or that of the fence has
                fewer than 64 bits; roll back.
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
        cursor.execute(*self.select_statement(row, [self.fence]))
        found = cursor.fetchone()
        if found is None:
            return False
        highest = found[0]
        if highest == fence and self._current:
            return True  # MySQL's drivers count only rows that came out different
        if highest is not None and highest <= fence:
            highest = None  # a snapshot, older than what refused us
        raise StaleFence(resource=f"{self.table}/{row}", fence=fence, highest=highest)

    def update_statement(
        self, row: object, fence: int, values: Mapping[str, object]
    ) -> Statement:
        """``UPDATE … SET … WHERE key = … AND fence <= …``: one row changed, or refused.

        Raises:
            BadFence: it is none.
            ConfigurationError: a column that cannot be used.
        """
        check_fence(fence)
        if not isinstance(values, Mapping):
            raise ConfigurationError(
                what=f"values: a mapping is wanted, not {type(values).__name__}"
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
        """``SELECT … WHERE key = …``, for after the update.

        Raises:
            ConfigurationError: a column that cannot be used, or none.
        """
        names = check_columns(columns, _COLUMN)
        if not names:
            raise ConfigurationError(what="no columns to read")
        text = (
            f"SELECT {', '.join(names)} FROM {self.table}"  # noqa: S608 - checked
            f" WHERE {self.key} = {self._mark(1)}"
        )
        if self._current:
            text += " FOR UPDATE"
        return text, self._bound([row])

    @property
    def _current(self) -> bool:
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
