"""Renewal channel of a cluster: one with a loop of its own to each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.slots import (
    Moved,
    SlotMap,
    parse_moved,
    slot_of,
)
from aiorwlock_remote.backends.redis.connection.protocol import (
    Call,
    Plain,
    Request,
    Script,
)
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    ThreadLoopChannel,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop

MAX_REDIRECTS = 3
"""How often a renewal is sent in one batch before it is left for the next batch."""


class ClusterRenewalChannel:
    """Sends each renewal to the node that has its slot; several threads may use it.

    Its map of slots to nodes begins as a copy of the store's and is corrected by the
    replies of nodes. The store's own map is not changed here, because calls of the
    event loop may be in flight to its nodes. When a node fails, the others are asked
    for the map, so that locks survive a failover even while the loop is blocked
    (test_cluster_renewals.py).
    """

    def __init__(
        self,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
        slots: SlotMap,
        on_new_map: Callable[[SlotMap], object],
    ) -> None:
        # Called in any thread, with a map that is newer than the store's.
        self._on_new_map = on_new_map
        self._options = options
        self._loop = loop
        self._clock = loop.clock
        self._scripts = scripts
        self._store_map, self._followed = slots, slots.owners
        self._slots = SlotMap(options.seeds)
        self._slots.follow(slots)
        self._connections: dict[Server, NodeChannel] = {}
        self._lock = Lock()
        self._given_up = False

    def lane(self, key: bytes) -> Server | None:
        """Return the node that has ``key``, None if unknown."""
        owners = self._store_map.owners
        if owners is not self._followed:  # the loop has learnt a newer map
            self._followed = owners
            self._slots.follow(self._store_map)
            self._retire()
        return self._slots.owners[slot_of(key)]

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """Run all scripts and return their raw replies, in order.

        A script that no node could serve within ``timeout`` seconds has an exception in
        place of its reply.
        """
        deadline = self._clock.now() + timeout
        unserved = BackendUnavailable(
            what=f"{self._options.where}: no node has the slot", nothing_done=True
        )
        outcomes: list[Any] = [unserved] * len(batch)
        left = list(range(len(batch)))
        for _ in range(MAX_REDIRECTS):
            left = self._round(batch, left, outcomes, deadline)
            if not left:
                break
        return [o.error() if isinstance(o, Redirected) else o for o in outcomes]

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            for connection in self._connections.values():
                connection.give_up()

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _round(
        self,
        batch: Sequence[Request],
        left: Sequence[int],
        outcomes: list[Any],
        deadline: float,
    ) -> list[int]:
        by_node: defaultdict[Server, list[int]] = defaultdict(list)
        for i in left:
            server = self.lane(_key(batch[i]))
            if server is not None:
                by_node[server].append(i)
        again: list[int] = []
        for server, some in by_node.items():
            seconds = deadline - self._clock.now()
            if seconds <= 0:
                break
            connection = self._connection(server)
            try:
                found = connection.run_many([batch[i] for i in some], seconds)
            except BackendError as exc:
                found = [exc] * len(some)
                self._ask_another(server, deadline)
            for i, outcome in zip(some, found, strict=True):
                outcomes[i] = outcome
                if isinstance(outcome, Redirected) and outcome.moved is not None:
                    self._slots.note(outcome.moved)
                    self._on_new_map(self._slots)
                # The map has changed with the redirection or the failure: another
                # round.
                if self.lane(_key(batch[i])) != server:
                    again.append(i)
        return again

    def _connection(self, server: Server) -> NodeChannel:
        with self._lock:
            connection = self._connections.get(server)
            if connection is None:
                connection = NodeChannel(
                    server, self._options, self._loop, self._scripts
                )
                self._connections[server] = connection
            # A connection that was made after `give_up` has not heard of it.
            if self._given_up:
                connection.give_up()
            return connection

    def _ask_another(self, failed: Server, deadline: float) -> None:
        others = [server for server in self._slots.known if server != failed]
        for tried, server in enumerate(others):
            seconds = (deadline - self._clock.now()) / (len(others) - tried + 1)
            if seconds <= 0:
                return
            asks: Plain = (None, ("CLUSTER", "SLOTS"))
            try:
                (found,) = self._connection(server).run_many([asks], seconds)
                if isinstance(found, Exception):
                    continue
                self._slots.learn(found, server)
            except BackendError:
                continue
            self._retire()
            self._on_new_map(self._slots)
            return

    def _retire(self) -> None:
        primaries = set(self._slots.primaries)
        with self._lock:
            for server in [s for s in self._connections if s not in primaries]:
                self._connections.pop(server).retire()


class Redirected:
    """Outcome of a request that a node refused: another has the slot (MOVED, ASK)."""

    def __init__(self, text: str, server: Server, where: str) -> None:
        self.moved: Moved | None = parse_moved(text, server)
        self._what = f"{where}: {text}"

    def error(self) -> BackendError:
        return BackendUnavailable(what=self._what, nothing_done=True)


class NodeChannel(ThreadLoopChannel):
    """Renewal channel to one node of a cluster; threads take turns to use it."""

    def __init__(
        self,
        server: Server,
        options: Options,
        loop: EventLoop,
        scripts: Sequence[Script],
    ) -> None:
        there = replace(options, host=server[0], port=server[1])
        super().__init__(there, loop, scripts)
        self._server = server
        self._in_use = Lock()
        self._retired = False

    def run_many(self, batch: Sequence[Request | Plain], timeout: float) -> list[Any]:
        with self._in_use:
            try:
                return super().run_many(batch, timeout)
            finally:
                if self._retired:
                    self.close()

    def retire(self) -> None:
        """Close the connection as soon as no thread uses it."""
        self._retired = True
        # A thread that waits for a reply closes the connection itself.
        if self._in_use.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._in_use.release()

    def redirected(self, call: Call[Any], text: str) -> bool:
        if text.partition(" ")[0] not in {"MOVED", "ASK"}:
            return False
        call.answered(Redirected(text, self._server, self._options.where))
        return True


def _key(request: Request) -> bytes:
    return cast("bytes", request[1][1])
