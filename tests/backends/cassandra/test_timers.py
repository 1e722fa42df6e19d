"""Timers: in order, once, and not at all if they were cancelled."""

from __future__ import annotations

from math import inf

from aiorwlock_remote.backends.cassandra.socket_reader import Timers


def test_in_the_order_of_their_times() -> None:
    timers, called = Timers(), list[str]()
    timers.add(2.0, lambda: called.append("second"))
    timers.add(1.0, lambda: called.append("first"))
    timers.add(2.0, lambda: called.append("third"))
    timers.add(3.0, lambda: called.append("later"))
    assert timers.first() == 1.0
    for call in timers.due(2.0):
        call()
    assert called == ["first", "second", "third"]
    assert timers.first() == 3.0
    assert timers.due(2.9) == []


def test_cancelled_ones_are_not_waited_for() -> None:
    timers = Timers()
    early, late = timers.add(1.0, int), timers.add(2.0, int)
    early.cancel()
    assert timers.first() == 2.0
    late.cancel()
    assert timers.due(5.0) == []
    assert timers.first() == inf
