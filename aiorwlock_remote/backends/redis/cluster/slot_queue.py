"""Calls to a slot that is on the move, kept in order until they can be sent again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connection.offline_queue import OfflineQueue
from aiorwlock_remote.core.polling import back_off

MAX_RETRY_INTERVAL = 0.5
"""Seconds between two tries of a slot, at most: calls wait for it."""


class SlotQueue:
    """One slot. Nothing is sent to its new node before the old one has answered all.

    Else a release could be carried out there before the acquire that it follows, which
    the old node is about to refuse. For the same reason nothing is sent again that a
    later call on the same key has overtaken: refused by a node that took the slot back
    before it came to the later one.
    """

    def __init__(self, where: str, patience: float, why: str) -> None:
        """``patience``: seconds until whoever awaits a call is told ``why``."""
        self._calls = OfflineQueue(where, patience)
        self._refused: list[Call[Any]] = []
        self._behind: list[Call[Any]] = []
        self._tries = 0
        self.due: float = 0.0
        """When it is tried again, at the earliest."""
        self.why: str = why
        self.drained: bool = False
        self.pause: bool = False
        """Whether it is tried again after a pause, with one call first."""

    @property
    def size(self) -> int:
        """How many calls can be sent, once they may."""
        return len(self._calls)

    def must_go(self) -> bool:
        """Whether anything that must go waits here."""
        return not self.drained or self._calls.must_go()

    def put(self, call: Call[Any], now: float) -> None:
        """A new call, behind all others."""
        self._calls.put(call, now)

    def refuse(self, call: Call[Any]) -> None:
        """One that a node refused, unchanged, in the order of the answers."""
        self._refused.append(call)

    def wait_for(self, calls: Iterable[Call[Any]]) -> None:
        """These are under way, in order; all will be answered."""
        self._behind = list(calls)
        self.drained = self.pause = False

    def wait_for_none(self) -> None:
        """Nothing is under way."""
        self.drained = self.pause = True

    def collect(self, now: float) -> list[Call[Any]]:
        """All are answered; what was refused is the next. Returns the overtaken."""
        behind, refused = set(self._behind), set(self._refused)
        first = [call for call in self._refused if call not in behind]
        self._refused = []
        done: set[object] = set()
        again: list[Call[Any]] = []
        overtaken: list[Call[Any]] = []
        for call in reversed([*first, *self._behind]):
            if call not in refused:
                done.add(call.args[1])
            elif call.args[1] in done:
                overtaken.append(call)
            else:
                again.append(call)
        self._calls.put_back(again[::-1], now)
        self.drained = True
        return overtaken

    def take(self) -> Iterable[Call[Any]]:
        """All of them, in order; none is left."""
        return self._calls.take()

    def take_first(self, now: float, random: float) -> Call[Any] | None:
        """The first one, if there is any, to see whether the slot is served again.

        Each time the next is due later: many slots may wait for one node that is away.
        """
        self.due = now + back_off(self._tries, random, longest=MAX_RETRY_INTERVAL)
        self._tries += 1
        return self._calls.take_first()

    def fail_late(self, now: float) -> None:
        """Tell those whose time of patience is over, each once."""
        self._calls.fail_late(now, self.why)

    def fail_all(self, why: str) -> None:
        """Tell all; none is left."""
        self._calls.fail_all(why)
