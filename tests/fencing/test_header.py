"""The fence that comes with a request: one number, in one header."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.errors import BadFence
from aiorwlock_remote.fencing.header import read_fence

DAY = 86_400_000_000


def from_now(micros: int) -> str:
    return str(int(time.time() * 1e6) + micros)


@pytest.mark.parametrize("ahead", [-DAY, 0, DAY // 2])
def test_one_number(ahead: int) -> None:
    fence = from_now(ahead)
    assert read_fence([fence]) == int(fence)


def test_of_the_day_after_tomorrow() -> None:
    with pytest.raises(BadFence, match="more than a day in the future"):
        read_fence([from_now(2 * DAY)])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "no Lock-Fence header"),
        (["7", "7"], "more than one Lock-Fence header"),
        (["seven"], "is not a number"),
        (["-7"], "is not a number"),
        ([7], "is not a number"),
    ],
)
def test_anything_else_is_refused(values: list[Any], why: str) -> None:
    with pytest.raises(BadFence, match=why):
        read_fence(values)


@pytest.mark.parametrize("values", ["7", {"7"}, None])
def test_what_is_no_list_of_headers(values: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match="list of all Lock-Fence headers"):
        read_fence(values)
