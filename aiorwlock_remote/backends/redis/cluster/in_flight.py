"""What nodes were sent and have not answered, by slot."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from aiorwlock_remote.backends.redis.cluster.node import NodeConnection
from aiorwlock_remote.backends.redis.cluster.slots import slot_of
from aiorwlock_remote.backends.redis.connection.calls import Call, KeyedCall


class InFlightBySlot:
    """Looks at each call once, however many slots are asked for while it is under way.

    A node that gives away thousands of slots says so call by call: to look through all
    that it was sent for each of them would take the square of their number.
    """

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._seen: defaultdict[NodeConnection, _Seen] = defaultdict(_Seen)

    def take(self, node: NodeConnection, slot: int) -> list[Call[Any]]:
        """The calls of a slot, in order, each told once; some may be answered since."""
        seen = self._seen[node]
        seen.catch_up(node)
        return list(seen.by_slot.pop(slot, ()))

    def forget(self) -> None:
        """Nobody will ask soon."""
        self._seen.clear()


class _Seen:
    """One node. Calls go behind all others, so the new ones are behind the last."""

    def __init__(self) -> None:
        self._last: Call[Any] | None = None
        # A dict for its order. A call that was sent again is in it once.
        self.by_slot: defaultdict[int, dict[Call[Any], None]] = defaultdict(dict)

    def catch_up(self, node: NodeConnection) -> None:
        new: list[Call[Any]] = []
        for call in node.newest_first():
            if call is self._last:
                break
            new.append(call)
        else:  # answered, and all that was seen before it
            self.by_slot.clear()
        for call in reversed(new):
            if by_slot(call):
                group = self.by_slot[slot_of_call(call)]
                group.pop(call, None)
                group[call] = None
        if new:
            self._last = new[0]


def by_slot(call: Call[Any]) -> bool:
    """Whether it goes to where its key is, and is sent on if that is elsewhere."""
    return call.script is not None or isinstance(call, KeyedCall)


def slot_of_call(call: Call[Any]) -> int:
    """The slot of the key that says where it goes."""
    return slot_of(cast("bytes", call.args[1]))
