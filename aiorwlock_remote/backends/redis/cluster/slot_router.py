"""Calls on their way to the nodes of a cluster, in order, whatever moves meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import anyio

from aiorwlock_remote.backends.redis.cluster.in_flight import (
    InFlightBySlot,
    by_slot,
    slot_of_call,
)
from aiorwlock_remote.backends.redis.cluster.node import NodeConnection
from aiorwlock_remote.backends.redis.cluster.node_pool import NodePool
from aiorwlock_remote.backends.redis.cluster.sharded_subscriptions import (
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slot_queue import SlotQueue
from aiorwlock_remote.backends.redis.cluster.slots import Moved, SlotMap
from aiorwlock_remote.backends.redis.cluster.topology_refresher import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.connection.connection import (
    CLOSE_TIMEOUT,
    CLOSED_BY_US,
    MAX_CALLS,
)
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.hosts import Server
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop

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
                if not by_slot(call):
                    continue
                slot = slot_of_call(call)
                if owners[slot] != node.server and slot not in self._holds:
                    self._hold(slot, node, f"slot {slot} is on the move")
        primaries = set(self._slots.primaries)
        for node in nodes:
            elsewhere = False  # WAIT is for what is in front of it
            for call in node.take_unsent():
                if by_slot(call):
                    elsewhere = owners[slot_of_call(call)] != node.server
                if elsewhere and by_slot(call):
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
