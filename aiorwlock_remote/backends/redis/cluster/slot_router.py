"""Calls on their way to the nodes of a cluster, in order, whatever moves meanwhile.

What nodes were sent and have not answered, by slot.

Calls to a slot that is on the move, kept in order until they can be sent again.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import anyio

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.nodes import NodeConnection, NodePool
from aiorwlock_remote.backends.redis.cluster.sharded_subscriptions import (
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slots import Moved, SlotMap, slot_of
from aiorwlock_remote.backends.redis.cluster.topology import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.connection.calls import Call, KeyedCall
from aiorwlock_remote.backends.redis.connection.connection import (
    CLOSE_TIMEOUT,
    CLOSED_BY_US,
    MAX_CALLS,
    OfflineQueue,
)
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop


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
            if is_routed_by_slot(call):
                group = self.by_slot[slot_of_call(call)]
                group.pop(call, None)
                group[call] = None
        if new:
            self._last = new[0]


def is_routed_by_slot(call: Call[Any]) -> bool:
    """Whether it goes to where its key is, and is sent on if that is elsewhere."""
    return call.script is not None or isinstance(call, KeyedCall)


def slot_of_call(call: Call[Any]) -> int:
    """The slot of the key that says where it goes."""
    return slot_of(cast("bytes", call.args[1]))


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


SLOT_RETRY_INTERVAL = 0.05
"""Seconds, about, until a slot that is on the move is tried again."""


class SlotRouter:
    """Sends each call to the node that has its slot, or keeps it until there is one."""

    def __init__(
        self,
        options: Options,
        host: EventLoop,
        slots: SlotMap,
        nodes: NodePool,
        channels: ShardedSubscriptions,
        gate: bytes,
        node_of: Callable[[Server], NodeConnection],
        search: TopologyRefresher,
    ) -> None:
        """Nothing is on its way. ``gate``: how our channels end.

        ``search`` is told where the map has no node for a slot.
        """
        self._node_of = node_of
        self._search = search
        self._where, self._patience = options.where, options.connect_timeout
        self._clock = host.clock
        self._slots = slots
        self._nodes = nodes
        self._channels = channels
        self._gate = gate
        self._holds: dict[int, SlotQueue] = {}
        self._under_way = InFlightBySlot()
        self._closed = False
        self._mending = BackgroundTask(host, self._mend)

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        """Send a script, the others right behind it; they fail if it has to wait."""
        slot = slot_of_call(call)
        hold, owner = self._holds.get(slot), self._slots.owners[slot]
        if self._closed:
            call.failed(self._unsent(CLOSED_BY_US))
        elif hold is None and owner is not None:
            self._send_to(self._node_of(owner), call, more)
            return
        elif hold is not None and hold.size >= MAX_CALLS and not call.must_go:
            call.failed(self._unsent("too much is under way"))
        else:
            if hold is None:
                hold = self._hold(slot, None, f"no node has slot {slot}")
                self._search.doubt(soon=True)
            hold.put(call, self._clock.now())
            self._mending.start()  # it may have been cancelled with the loop's tasks
        for other in more:
            other.failed(self._unsent(f"slot {slot} is on the move"))

    def refused(
        self, node: NodeConnection, call: Call[Any], text: str, told: Moved | None
    ) -> None:
        """A node did not carry it out: the slot is elsewhere, or on its way there."""
        if self._closed:
            call.failed(self._unsent(CLOSED_BY_US))
            return
        slot = slot_of_call(call)
        hold = self._holds.get(slot) or self._hold(slot, node, text)
        hold.why = text
        # Sent on at once, but not round in circles.
        hold.pause = hold.pause or told is None or call.since > 0
        if told is not None:
            hold.due = 0.0
        hold.refuse(call)

    def slots_changed(self) -> None:
        """Whatever has to go to another node now, goes there."""
        nodes, owners = self._nodes.all(), self._slots.owners
        for node in nodes:
            for call in node.under_way():
                if not is_routed_by_slot(call):
                    continue
                slot = slot_of_call(call)
                if owners[slot] != node.server and slot not in self._holds:
                    self._hold(slot, node, f"slot {slot} is on the move")
        primaries = set(self._slots.primaries)
        for node in nodes:
            elsewhere = False  # WAIT is for what is in front of it
            for call in node.take_unsent():
                if is_routed_by_slot(call):
                    elsewhere = owners[slot_of_call(call)] != node.server
                if elsewhere and is_routed_by_slot(call):
                    self.send(call)
                elif elsewhere and call.args[0] == "WAIT":
                    call.failed(self._unsent("its slot is on the move"))
                elif node.server in primaries:
                    _ = node.hand_over(call)
                else:
                    call.failed(self._unsent("its node was replaced"))

    def look(self) -> None:
        """Try again what waits, and fail what has waited for too long."""
        now = self._clock.now()
        for slot, hold in list(self._holds.items()):
            hold.fail_late(now)
            if hold.drained and now >= hold.due:
                self._try_again(slot, hold, now)

    async def finish(self) -> None:
        """Wait until all that must go has gone, wherever it had to; 1 s at most."""
        with anyio.move_on_after(CLOSE_TIMEOUT):
            while True:
                last = [node.settled() for node in self._nodes.all()]
                busy = [call for call in last if not call.done()]
                for answered in busy:
                    with suppress(BackendError):
                        await answered
                if busy:
                    continue  # what they refused may be at another node now
                if not any(hold.must_go() for hold in self._holds.values()):
                    return
                await anyio.sleep(SLOT_RETRY_INTERVAL)

    def close(self) -> BackgroundTask:
        """Nothing waits any more; what is called off, and soon over."""
        self._closed = True
        self._mending.call_off()
        for hold in self._holds.values():
            hold.fail_all(CLOSED_BY_US)
        self._holds.clear()
        return self._mending

    def _unsent(self, why: str) -> BackendUnavailable:
        return not_sent(self._where, why)

    def _send_to(
        self, node: NodeConnection, call: Call[Any], more: tuple[Call[Any], ...] = ()
    ) -> None:
        script, args = call.script, call.args
        if script is not None and script.waits:
            # The last key is where its channels begin.
            channel = cast("bytes", args[cast("int", args[0])]) + self._gate
            self._channels.need(channel, node, self._clock.now())
        if not node.connected:
            self._search.go_on()
        if more:
            node.send(call, *more)
        else:
            _ = node.hand_over(call)

    def _hold(self, slot: int, node: NodeConnection | None, why: str) -> SlotQueue:
        hold = self._holds[slot] = SlotQueue(self._where, self._patience, why)
        self._drain(slot, hold, node)
        self._mending.start()
        return hold

    def _drain(self, slot: int, hold: SlotQueue, node: NodeConnection | None) -> None:
        """Wait until the node has answered all that it was sent."""
        if node is None or not node.connected:
            hold.wait_for_none()
            return
        hold.wait_for(self._under_way.take(node, slot))
        node.last_word().add_done_callback(lambda _: self._drained(slot, hold))

    def _drained(self, slot: int, hold: SlotQueue) -> None:
        for call in hold.collect(self._clock.now()):
            call.failed(self._unsent("a later command of ours was carried out"))
        if self._closed:
            hold.fail_all(CLOSED_BY_US)
        elif not hold.pause:
            self._let_go(slot)

    def _let_go(self, slot: int) -> None:
        hold = self._holds.pop(slot, None)
        if not self._holds:
            self._under_way.forget()
        if hold is not None:
            for call in hold.take():
                self.send(call)

    async def _mend(self) -> None:
        while self._holds:
            await anyio.sleep(SLOT_RETRY_INTERVAL * (0.5 + random.random()))
            self.look()

    def _try_again(self, slot: int, hold: SlotQueue, now: float) -> None:
        """With the first call alone: if it is refused, the others need not go."""
        owner = self._slots.owners[slot]
        if owner is None and hold.size:
            self._search.doubt()
            return
        node = self._nodes.find(owner)
        there = node is not None and node.connected
        first = hold.take_first(now, random.random()) if there else None
        if first is not None and node is not None:
            self._send_to(node, first)
            self._drain(slot, hold, node)
        else:  # they wait for the connection, or there is none
            self._let_go(slot)
