"""The name of a resource in the two published columns."""

from __future__ import annotations


def row(key: str) -> tuple[str, int]:
    """``order/5`` is id 5 of the type order."""
    kind, _, number = key.partition("/")
    return kind, int(number or 0)
