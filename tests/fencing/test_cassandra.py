"""Texts of Cassandra, and what its answers say."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from aiorwlock_remote import BadFence, ConfigurationError, StaleFence
from aiorwlock_remote.fencing.cassandra import accepted, fenced_update, fenced_values


def test_the_text_and_its_values() -> None:
    text = fenced_update("shop.stock", ["pieces"], ["shop", "id"])
    assert text == (
        "UPDATE shop.stock SET pieces = ?, fence = ?"
        " WHERE shop = ? AND id = ? IF fence <= ?"
    )
    assert fenced_values([99], ["north", 7], 5) == (99, 5, "north", 7, 5)
    with pytest.raises(BadFence):
        fenced_values([99], ["north", 7], -1)


@pytest.mark.parametrize(
    ("table", "columns", "key"),
    [
        ("", ["a"], ["id"]),
        ("a b", ["a"], ["id"]),
        ("a.b.c", ["a"], ["id"]),
        ("a", ["a; --"], ["id"]),
        ("a", ["a"], ["id = 1 --"]),
        ("a", ["a"], []),
        ("a", ["fence"], ["id"]),
        ("a", ["Fence"], ["id"]),
        ("a", ["a"], ["id", "ID"]),
        ("a", ["a"], ["fence"]),
    ],
)
def test_names_that_are_none(table: str, columns: list[str], key: list[str]) -> None:
    with pytest.raises(ConfigurationError):
        fenced_update(table, columns, key)


class Applied(NamedTuple):
    applied: bool
    fence: int | None = None


class NoRow(NamedTuple):
    applied: bool


@pytest.mark.parametrize(
    ("row", "done"),
    [
        (Applied(applied=True), True),
        (NoRow(applied=False), False),
        (Applied(applied=False), False),
        ({"[applied]": True}, True),
        ({"[applied]": False}, False),
    ],
)
def test_answers(row: Any, done: bool) -> None:  # noqa: ANN401 - as the session has them
    assert accepted([row], "stock/7", 5) is done


@pytest.mark.parametrize(
    "row", [Applied(applied=False, fence=6), {"[applied]": False, "fence": 6}]
)
def test_refusals(row: Any) -> None:  # noqa: ANN401
    with pytest.raises(StaleFence) as caught:
        accepted([row], "stock/7", 5)
    assert (caught.value.fence, caught.value.highest) == (5, 6)
