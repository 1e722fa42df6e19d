"""Answers for a loop: in order, all of them, and one wake for those that lie ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from aiorwlock_remote.backends.cassandra.inbox import Inbox
from aiorwlock_remote.runtime.clock import SystemClock


class Loop:
    """A host whose loop runs when told to."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.calls: list[Callable[[], object]] = []

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self.calls.append(lambda: function(*args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_one_wake_for_all_that_lie_ready() -> None:
    loop, got = Loop(), list[int]()
    inbox = Inbox(loop)
    for number in range(5):
        inbox.put(got.append, number)
    assert len(loop.calls) == 1
    loop.turn()
    assert got == [0, 1, 2, 3, 4]
    inbox.put(got.append, 5)
    assert len(loop.calls) == 1
    loop.turn()
    assert got[-1] == 5


def test_what_comes_meanwhile_is_not_forgotten() -> None:
    loop, got = Loop(), list[str]()
    inbox = Inbox(loop)

    def first(answer: str) -> None:
        got.append(answer)
        inbox.put(got.append, "meanwhile")

    inbox.put(first, "first")
    while loop.calls:
        loop.turn()
    assert got == ["first", "meanwhile"]


def test_one_that_fails_keeps_no_other_from_its_answer() -> None:
    loop, got = Loop(), list[str]()
    inbox = Inbox(loop)

    def broken(_: object) -> None:
        raise ValueError

    inbox.put(broken, None)
    inbox.put(got.append, "other")
    with pytest.raises(ValueError, match=r"^$"):
        loop.turn()
    loop.turn()
    assert got == ["other"]
