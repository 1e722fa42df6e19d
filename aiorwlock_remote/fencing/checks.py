"""Checks of fences, and of names that are written into statements unquoted."""

from __future__ import annotations

from collections.abc import Iterable
from re import Pattern
from typing import TypeVar

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import BadFence, ConfigurationError

# Lua and JavaScript compare numbers exactly up to here. A fence is a time in
# microseconds since 1970, and reaches this limit in the year 2255.
MAX_FENCE = 2**53 - 1

T = TypeVar("T")


def check_fence(fence: int) -> int:
    """Return the fence; raise ``BadFence`` unless it is an int, 0 to ``MAX_FENCE``."""
    # A bool is an int in Python, but True as a fence is a mistake of the caller.
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise BadFence(what=f"a fence must be an int, not {type(fence).__name__}")
    if not 0 <= fence <= MAX_FENCE:
        raise BadFence(what=f"fence {fence} is not between 0 and {MAX_FENCE}")
    return fence


def check_name(kind: str, name: object, pattern: Pattern[str]) -> None:
    """Raise ``ConfigurationError`` unless ``name`` is a text that ``pattern`` matches.

    ``kind`` says in the error what the name is for, such as "column".
    """
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise ConfigurationError(
            what=f"{quoted(name)} cannot be used as the name of a {kind}",
            hint="letters, digits and underscores",
        )


def check_columns(names: Iterable[str], pattern: Pattern[str]) -> tuple[str, ...]:
    """Return column names that ``pattern`` matches, or raise ``ConfigurationError``."""
    columns = as_tuple("columns", names)
    for name in columns:
        check_name("column", name, pattern)
    return columns


def check_distinct(*names: str) -> None:
    """Raise ``ConfigurationError`` if two names are equal, apart from case."""
    folded = [name.lower() for name in names]
    for name in names:
        if folded.count(name.lower()) > 1:
            raise ConfigurationError(
                what=f"column {quoted(name)} is named twice",
                hint="leave key and fence out of the columns; case does not count",
            )


def as_tuple(what: str, values: Iterable[T]) -> tuple[T, ...]:
    """Return ``values`` (called ``what``) as a tuple; raise an error for a text."""
    # "body" would otherwise become the columns b, o, d and y (test_types.py).
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigurationError(
            what=f"{what} must be a sequence, not {type(values).__name__}"
        )
    return tuple(values)
