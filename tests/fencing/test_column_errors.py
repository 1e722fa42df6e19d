"""A fence that its column is too narrow for: which errors say so."""

from __future__ import annotations

import pytest

from aiorwlock_remote.fencing.sql import driver_code, narrow_column_error

FENCE = 1_700_000_000_000_000


class WithState(Exception):
    sqlstate = "22003"


@pytest.mark.parametrize("others", [(), ("text", b"bytes", None, 5)])
def test_the_fence_was_too_large(others: tuple[object, ...]) -> None:
    error = WithState("integer out of range")
    found = narrow_column_error(error, "cells", "fence", FENCE, others)
    assert found is not None
    assert "does not fit cells.fence" in found.what


@pytest.mark.parametrize(
    ("error", "fence", "others"),
    [
        (WithState("numeric field overflow"), FENCE, ()),
        (WithState("integer out of range"), 5, ()),
        (WithState("integer out of range"), FENCE, (FENCE,)),
        (WithState("integer out of range"), FENCE, (1.5,)),
        (Exception("integer out of range"), FENCE, ()),
    ],
    ids=["another message", "a small fence", "a large value", "a float", "no code"],
)
def test_something_else_was_wrong(
    error: Exception, fence: int, others: tuple[object, ...]
) -> None:
    assert narrow_column_error(error, "cells", "fence", fence, others) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WithState("x"), "22003"),
        (Exception(1264, "x"), "1264"),
        (Exception("ORA-01438"), "ORA-01438"),
        (Exception("ORA-01438: value too large"), ""),
        (Exception("no such table"), ""),
        (Exception(), ""),
        (OSError(5, "x"), ""),
    ],
)
def test_codes_of_drivers(error: Exception, code: str) -> None:
    assert driver_code(error) == code
