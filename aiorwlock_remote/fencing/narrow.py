"""Columns that are too narrow for a fence, which needs 64 bits."""

from __future__ import annotations

import re
from collections.abc import Iterable

from aiorwlock_remote.errors import ConfigurationError

SMALL = 2**15
"""What fits any column of integers."""

_BIGINT = "ALTER TABLE {} ALTER COLUMN {} TYPE bigint"
_ALTERS = {
    "22003": ("int out of range|integer out of range", _BIGINT),
    "22000": ("out of int(16|32) range", _BIGINT),  # asyncpg's own
    "1264": ("", "ALTER TABLE {} MODIFY {} BIGINT NOT NULL DEFAULT 0"),
    "ORA-01438": ("", "ALTER TABLE {} MODIFY {} NUMBER(19)"),
}
"""By code: what the message has to say, and what mends it."""
_ORACLE = re.compile("(ORA|DPY)-[0-9]+")
_SQLITE = {8: "SQLITE_READONLY", 19: "SQLITE_CONSTRAINT"}


def code_of(driver: object) -> str:
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


def too_narrow(
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
    if fence < SMALL or any(_is_large(other) for other in others):
        return None
    code = code_of(driver) or str(getattr(driver, "pgcode", ""))  # psycopg2's
    said, alter = _ALTERS.get(code, ("", ""))
    if not alter or not re.search(said, str(driver)):
        return None
    return ConfigurationError(
        what=f"fence {fence} does not fit {table}.{column}: a fence needs 64 bits",
        hint=alter.format(table, column),
    )


def _is_large(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) >= SMALL
    return not (value is None or isinstance(value, str | bytes))
