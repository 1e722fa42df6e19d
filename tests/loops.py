"""The event loops that tests run on, and which of them where it does not matter."""

from __future__ import annotations

from zlib import crc32

import pytest

LOOPS = (
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
)

IN_TURN = ("asyncio", "trio")
ON_ALL = ("Cancellation",)
"""Parts of the names of cases that each loop must show for every store."""


def is_on(loop: str, name: str) -> bool:
    """Whether a test of this name runs on it."""
    return f"[{loop}" in name or f"-{loop}" in name


def turn_of(cases: str, test: str) -> frozenset[str]:
    """The loops of a case in a suite whose cases run on asyncio and trio in turn."""
    if any(part in cases for part in ON_ALL):
        return frozenset(IN_TURN)
    return frozenset({IN_TURN[crc32(f"{cases}::{test}".encode()) % len(IN_TURN)]})
