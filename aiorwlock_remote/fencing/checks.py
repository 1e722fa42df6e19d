"""Names that go into statements as they are, so only those that need no quotes.

What a fence is, and what is no fence.
"""

from __future__ import annotations

from collections.abc import Iterable
from re import Pattern
from typing import TypeVar

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BadFence, ConfigurationError

T = TypeVar("T")


def check_table(name: str, fit: Pattern[str]) -> None:
    """Refuse what is no name of a table.

    Raises:
        ConfigurationError: it is none.
    """
    _check("table", name, fit)


def check_columns(names: Iterable[str], fit: Pattern[str]) -> tuple[str, ...]:
    """They, as often as one wants to look at them.

    Raises:
        ConfigurationError: one that is none, or no sequence of names.
    """
    columns = as_tuple("columns", names)
    for name in columns:
        _check("column", name, fit)
    return columns


def check_distinct(*names: str) -> None:
    """Refuse two names of one column: databases do not tell them apart by case.

    Raises:
        ConfigurationError: there are.
    """
    found = [name.lower() for name in names]
    for name in names:
        if found.count(name.lower()) > 1:
            raise ConfigurationError(
                what=f"column {quoted(name)} stands there twice",
                hint="key and fence are not among the columns; case does not count",
            )


def as_tuple(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """The values; not the letters of a text.

    Raises:
        ConfigurationError: there is only one, or something else.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigurationError(
            what=f"{what}: a sequence is wanted, not {type(values).__name__}"
        )
    return tuple(values)


def _check(kind: str, name: object, fit: Pattern[str]) -> None:
    if not isinstance(name, str) or not fit.fullmatch(name):
        raise ConfigurationError(what=f"{quoted(name)} is no name of a {kind}")


MAX_FENCE = 2**53 - 1
"""What Lua and JavaScript keep exactly; fences get there in the year 2255."""


def check_fence(fence: int) -> int:
    """The fence, if it is one.

    Raises:
        BadFence: no integer, negative, or out of range.
    """
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise BadFence(what=f"a fence is an int, not {type(fence).__name__}")
    if not 0 <= fence <= MAX_FENCE:
        raise BadFence(what=f"fence {fence} is out of range")
    return fence
