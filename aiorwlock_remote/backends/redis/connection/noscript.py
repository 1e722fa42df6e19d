"""Calls that were refused because the server had forgotten their scripts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import BarrierCall, Call
from aiorwlock_remote.backends.redis.connection.script import Arg

ELSEWHERE: frozenset[str] = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
"""How a node of a cluster begins to say that it has not got the slot, or not quite."""


class NoScriptRetries:
    """Kept until all under way is answered; then each is sent again with its text.

    ``calls``: in the order of the answers; ``whole``: those sent again, until all that
    is under way is answered.
    """

    __slots__ = ("_by_key", "calls", "whole")

    def __init__(self) -> None:
        """None."""
        self.calls: dict[Call[Any], None] = {}  # a set that keeps its order
        self._by_key: defaultdict[Arg, list[Call[Any]]] = defaultdict(list)
        self.whole: frozenset[Call[Any]] = frozenset()

    def keeps(self, call: Call[Any], text: str) -> bool:
        """Whether a call was refused for that, and not when its text was sent.

        Or because its slot went away, behind one with the same key that is kept: each
        would be sent on by itself, and could pass the other.
        """
        if call.script is None:
            return False
        key, verb = call.args[1], text.partition(" ")[0]
        if verb == "NOSCRIPT":
            if call in self.whole:
                return False
        elif verb not in ELSEWHERE or key not in self._by_key:
            return False
        self.calls[call] = None
        self._by_key[key].append(call)
        return True

    def keep_behind(self, last: BarrierCall) -> None:
        """Sent again behind all that are kept."""
        self.calls[last] = None

    def take_at(self, key: Arg) -> list[Call[Any]]:
        """Those with this key: they are not sent again."""
        taken = self._by_key.pop(key, [])
        for call in taken:
            del self.calls[call]
        return taken

    def take(self) -> list[Call[Any]]:
        """All of them, to be sent again now: nothing else is under way."""
        again = list(self.calls)
        self.clear()
        self.whole = frozenset(again)
        return again

    def clear(self) -> None:
        """There are none any more, and none was sent again."""
        self.calls.clear()
        self._by_key.clear()
        self.whole = frozenset()
