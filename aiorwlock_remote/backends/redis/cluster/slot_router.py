"""Sends the calls of a cluster client in order, while slots move between nodes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.nodes import (
    NodeConnection,
    NodePool,
    ShardedSubscriptions,
)
from aiorwlock_remote.backends.redis.cluster.slots import Moved, SlotMap, slot_of
from aiorwlock_remote.backends.redis.cluster.topology import TopologyRefresher
from aiorwlock_remote.backends.redis.connection.connection import (
    CLOSE_TIMEOUT,
    CLOSED_BY_US,
    MAX_CALLS,
    OfflineQueue,
)
from aiorwlock_remote.backends.redis.connection.protocol import Call, KeyedCall
from aiorwlock_remote.backends.redis.errors import not_sent
from aiorwlock_remote.backends.redis.log import log_debug
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.core.timing import around, back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop

MAX_RETRY_INTERVAL = 0.5
"""Maximum seconds between two attempts to send the calls of a slot."""
SLOT_RETRY_INTERVAL = 0.05
"""Seconds, about, between two checks of the slots that are moving."""


class SlotRouter:
    """Sends each call to the node that has its slot; queues it while no node has.

    Invariants (test_slot_router.py, and real orders of events in
    test_cluster_random_histories.py):

    * The calls for one key are carried out in the order they were handed over, each
      once: the calls of a slot that moves wait in its ``SlotQueue`` until the old node
      has answered everything it was sent
      (``test_sending_on_at_once_breaks_the_order``).
    * A refused call is not sent again if a later call with its key was carried out.
    * Each call ends: it is carried out, or fails with ``nothing_done`` when it has been
      queued for ``connect_timeout`` seconds.
    * A script that may create a queue entry runs only after SSUBSCRIBE for its slot was
      sent to the same node (test_sharded_subscriptions.py).
    * The cost of a slot that moves does not grow with the calls of other slots
      (test_slot_router_cost.py).
    """

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        slots: SlotMap,
        nodes: NodePool,
        channels: ShardedSubscriptions,
        client_id: bytes,
        refresher: TopologyRefresher,
    ) -> None:
        self._refresher = refresher
        self._where, self._patience = options.where, options.connect_timeout
        self._clock = loop.clock
        self._slots = slots
        self._nodes = nodes
        self._channels = channels
        self._client_id = client_id  # the end of all wake-up channels of this client
        self._queues: dict[int, SlotQueue] = {}
        self._in_flight = InFlightBySlot()
        self._closed = False
        self._retrying = BackgroundTask(loop, self._retry)

    def node_at(self, server: Server) -> NodeConnection:
        """Return the connection to ``server``; start to connect if there is none."""
        node = self._nodes.find(server)
        if node is None:
            node = self._nodes.start(server)
            self._refresher.hurry()
        return node

    def send(self, call: Call[Any], *more: Call[Any]) -> None:
        """Send calls, in one write, to the node of the first call's key.

        If no node can serve the first now, it is queued, and the others fail.
        """
        slot = slot_of_call(call)
        queue, owner = self._queues.get(slot), self._slots.owners[slot]
        if self._closed:
            call.failed(self._unsent(CLOSED_BY_US))
        elif queue is None and owner is not None:
            self._send_to(self.node_at(owner), call, more)
            return
        elif queue is not None and len(queue) >= MAX_CALLS and not call.must_go:
            call.failed(self._unsent("too much is under way"))
        else:
            if queue is None:
                queue = self._enqueue(slot, None, f"no node has slot {slot}")
                self._refresher.refresh(soon=True)
            queue.put(call, self._clock.now())
            # A program may have cancelled this task with all others of the loop.
            self._retrying.start()
        for other in more:
            other.failed(self._unsent(f"slot {slot} is on the move"))

    def redirect(
        self, node: NodeConnection, call: Call[Any], text: str, moved: Moved | None
    ) -> None:
        """Queue a call that ``node`` refused with the error ``text``, to be resent.

        ``moved`` is the new owner of the slot, None if the error names none.
        """
        if self._closed:
            call.failed(self._unsent(CLOSED_BY_US))
            return
        slot = slot_of_call(call)
        queue = self._queues.get(slot)
        if queue is None:  # an empty queue is false
            queue = self._enqueue(slot, node, text)
        queue.why = text
        # Sent on at once where the error names a node, but only the first time: two
        # nodes that name each other would send it round in circles.
        queue.pause = queue.pause or moved is None or call.queued_at > 0
        if moved is not None:
            queue.due = 0.0
        queue.refuse(call)

    def slots_changed(self) -> None:
        """Move calls of moved slots to their new nodes, once the old nodes replied."""
        nodes, owners = self._nodes.all(), self._slots.owners
        # First the slots with calls in flight at their former nodes: new calls must
        # wait until those are answered there.
        for node in nodes:
            for call in node.unanswered():
                if not is_routed_by_slot(call):
                    continue
                slot = slot_of_call(call)
                if owners[slot] != node.server and slot not in self._queues:
                    self._enqueue(slot, node, f"slot {slot} is on the move")
        # Then the calls that their former nodes have not sent yet.
        primaries = set(self._slots.primaries)
        for node in nodes:
            elsewhere = False  # WAIT belongs to the call in front of it
            for call in node.take_unsent():
                if is_routed_by_slot(call):
                    elsewhere = owners[slot_of_call(call)] != node.server
                if elsewhere and is_routed_by_slot(call):
                    self.send(call)
                elif elsewhere and call.args[0] == "WAIT":
                    call.failed(self._unsent("its slot is on the move"))
                elif node.server in primaries:
                    _ = node.submit(call)
                else:
                    call.failed(self._unsent("its node was replaced"))

    def retry_due(self) -> None:
        """Retry the slots whose pause is over, and fail calls that waited too long."""
        now = self._clock.now()
        for slot, queue in list(self._queues.items()):
            queue.fail_late(now, queue.why)
            if queue.drained and now >= queue.due:
                self._try_again(slot, queue, now)

    async def finish(self) -> None:
        """Wait for replies to releases and withdrawals; ``CLOSE_TIMEOUT`` at most."""
        with anyio.move_on_after(CLOSE_TIMEOUT):
            while True:
                barriers = [node.settled() for node in self._nodes.all()]
                busy = [barrier for barrier in barriers if not barrier.done()]
                for barrier in busy:
                    with suppress(BackendError):
                        await barrier
                if busy:
                    continue  # a call that they refused may be at another node now
                if not any(queue.must_go() for queue in self._queues.values()):
                    return
                await anyio.sleep(SLOT_RETRY_INTERVAL)

    def close(self) -> BackgroundTask:
        """Fail all queued calls; return the stopped retry task, to be waited for."""
        self._closed = True
        self._retrying.stop()
        for queue in self._queues.values():
            queue.fail_all(CLOSED_BY_US)
        self._queues.clear()
        return self._retrying

    def _unsent(self, why: str) -> BackendUnavailable:
        return not_sent(self._where, why)

    def _send_to(
        self, node: NodeConnection, call: Call[Any], more: tuple[Call[Any], ...] = ()
    ) -> None:
        script, args = call.script, call.args
        if script is not None and script.waits:
            # The last key of a script is the prefix of its slot's channels (keys.py).
            channel = cast("bytes", args[cast("int", args[0])]) + self._client_id
            self._channels.need(channel, node, self._clock.now())
        if not node.connected:
            # The search for the node may have been cancelled with all tasks of the loop
            # (test_a_call_starts_the_search_for_a_lost_node).
            self._refresher.task.start()
        if more:
            node.send(call, *more)
        else:
            _ = node.submit(call)

    def _enqueue(self, slot: int, node: NodeConnection | None, why: str) -> SlotQueue:
        log_debug("slot_queued", slot=slot, reason=why)
        queue = self._queues[slot] = SlotQueue(self._where, self._patience, why)
        self._drain(slot, queue, node)
        self._retrying.start()
        return queue

    def _drain(self, slot: int, queue: SlotQueue, node: NodeConnection | None) -> None:
        if node is None or not node.connected:
            queue.wait_for(None)
            return
        queue.wait_for(self._in_flight.take(node, slot))
        node.barrier().add_done_callback(lambda _: self._drained(slot, queue))

    def _drained(self, slot: int, queue: SlotQueue) -> None:
        # The node took the slot back after it had refused them, and carried out a later
        # call with the same key: in this order they may not be repeated.
        for call in queue.collect(self._clock.now()):
            call.failed(self._unsent("a later command of ours was carried out"))
        if self._closed:
            queue.fail_all(CLOSED_BY_US)
        elif not queue.pause:
            self._send_queued(slot)

    def _send_queued(self, slot: int) -> None:
        queue = self._queues.pop(slot, None)
        if not self._queues:
            self._in_flight.forget()
        if queue is not None:
            for call in queue.take():
                self.send(call)

    async def _retry(self) -> None:
        while self._queues:
            # At random, so that clients do not all come at the same moment.
            await anyio.sleep(around(SLOT_RETRY_INTERVAL, random.random(), 0.5))
            self.retry_due()

    def _try_again(self, slot: int, queue: SlotQueue, now: float) -> None:
        owner = self._slots.owners[slot]
        if owner is None and queue:
            self._refresher.refresh()
            return
        node = self._nodes.find(owner)
        # The first call alone: if it is refused, the others need not travel.
        first = None
        if node is not None and node.connected:
            first = queue.take_probe(now, random.random())
        if first is not None and node is not None:
            self._send_to(node, first)
            self._drain(slot, queue, node)
        else:  # nothing is queued, or the calls can wait at the node for its connection
            self._send_queued(slot)


class SlotQueue(OfflineQueue):
    """Queue of the calls for one slot that is moving, until they can be sent again.

    Nothing is sent to the new node before the old one has answered everything: a
    release could overtake its acquire, which the old node may still refuse.
    """

    def __init__(self, where: str, patience: float, why: str) -> None:
        super().__init__(where, patience)
        self._refused: list[Call[Any]] = []
        self._awaited: list[Call[Any]] = []
        self._tries = 0
        self.due: float = 0.0
        """Loop time of the next try, at the earliest."""
        self.why: str = why
        self.drained: bool = False
        """Whether the old node has answered all that it was sent."""
        self.pause: bool = False
        """Whether the next try comes after a pause, with one call first."""

    def must_go(self) -> bool:
        """Return True if the queue has, or may still get, a release or withdrawal."""
        return not self.drained or super().must_go()

    def refuse(self, call: Call[Any]) -> None:
        """Add a call that the node refused. Must be called in the order of replies."""
        self._refused.append(call)

    def wait_for(self, calls: Sequence[Call[Any]] | None) -> None:
        """Send nothing until the old node has answered these calls (oldest first).

        None: there is no old node that could answer.
        """
        self._awaited = [*(calls or ())]
        self.drained = self.pause = calls is None

    def collect(self, now: float) -> list[Call[Any]]:
        """Put the refused calls in front of the queue; call this after all replies.

        ``now`` (loop time): start of the wait of calls that were never queued before.

        Returns:
            The refused calls that must not be repeated: a later one was carried out.
        """
        awaited, refused = set(self._awaited), set(self._refused)
        first = [call for call in self._refused if call not in awaited]
        self._refused = []
        carried_out: set[object] = set()
        again: list[Call[Any]] = []
        overtaken: list[Call[Any]] = []
        for call in reversed([*first, *self._awaited]):
            if call not in refused:
                carried_out.add(call.args[1])
            elif call.args[1] in carried_out:
                overtaken.append(call)
            else:
                again.append(call)
        self.put_back(again[::-1], now)
        self.drained = True
        return overtaken

    def take_probe(self, now: float, random: float) -> Call[Any] | None:
        """Remove and return the first call, None if the queue is empty.

        The caller sends this call alone, to see whether the node serves the slot. The
        next probe is due after a growing pause from ``now`` (loop time), which
        ``random`` (0 to 1) varies.
        """
        self.due = now + back_off(self._tries, random, longest=MAX_RETRY_INTERVAL)
        self._tries += 1
        return self._calls.popleft() if self._calls else None


class InFlightBySlot:
    """Finds the unanswered calls of one slot without a search of all calls.

    A node that gives away thousands of slots refuses their calls one by one. A search
    of all calls in flight for each would take quadratic time
    (test_slot_router_cost.py).
    """

    def __init__(self) -> None:
        self._indexes: defaultdict[NodeConnection, _NodeIndex] = defaultdict(_NodeIndex)

    def take(self, node: NodeConnection, slot: int) -> list[Call[Any]]:
        """Remove and return a slot's calls, oldest first; some may have ended."""
        index = self._indexes[node]
        index.catch_up(node)
        return list(index.by_slot.pop(slot, ()))

    def forget(self) -> None:
        self._indexes.clear()


class _NodeIndex:
    def __init__(self) -> None:
        self._last: Call[Any] | None = None
        # The dicts are sets that keep their order: a call sent again is in them once.
        self.by_slot: defaultdict[int, dict[Call[Any], None]] = defaultdict(dict)

    def catch_up(self, node: NodeConnection) -> None:
        # New calls go behind all others, so they are those behind the last one seen.
        new: list[Call[Any]] = []
        for call in node.newest_first():
            if call is self._last:
                break
            new.append(call)
        else:  # the last one is answered, and with it all that was seen before
            self.by_slot.clear()
        for call in reversed(new):
            if is_routed_by_slot(call):
                calls = self.by_slot[slot_of_call(call)]
                calls.pop(call, None)
                calls[call] = None
        if new:
            self._last = new[0]


def is_routed_by_slot(call: Call[Any]) -> bool:
    """Return True if the call's key decides which node the call is sent to."""
    return call.script is not None or isinstance(call, KeyedCall)


def slot_of_call(call: Call[Any]) -> int:
    """Return the slot of ``call.args[1]``, the key that decides where the call goes."""
    return slot_of(cast("bytes", call.args[1]))
