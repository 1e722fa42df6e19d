"""Answers for a loop: in order, all of them, and one wake for those that lie ready."""

from __future__ import annotations

import pytest

from aiorwlock_remote.backends.cassandra.session_client import CallbackQueue
from tests.backends.cassandra.fake_loop import FakeLoop


def test_one_wake_for_all_that_lie_ready() -> None:
    loop, got = FakeLoop(), list[int]()
    inbox = CallbackQueue(loop)
    for number in range(5):
        inbox.put(got.append, number)
    assert len(loop.calls) == 1
    loop.turn()
    assert got == [0, 1, 2, 3, 4]
    inbox.put(got.append, 5)
    assert len(loop.calls) == 1
    loop.turn()
    assert got[-1] == 5


def test_callbacks_added_meanwhile_run_too() -> None:
    loop, got = FakeLoop(), list[str]()
    inbox = CallbackQueue(loop)

    def first(answer: str) -> None:
        got.append(answer)
        inbox.put(got.append, "meanwhile")

    inbox.put(first, "first")
    while loop.calls:
        loop.turn()
    assert got == ["first", "meanwhile"]


def test_one_that_fails_keeps_no_other_from_its_answer() -> None:
    loop, got = FakeLoop(), list[str]()
    inbox = CallbackQueue(loop)

    def broken(_: object) -> None:
        raise ValueError

    inbox.put(broken, None)
    inbox.put(got.append, "other")
    with pytest.raises(ValueError, match=r"^$"):
        loop.turn()
    loop.turn()
    assert got == ["other"]
