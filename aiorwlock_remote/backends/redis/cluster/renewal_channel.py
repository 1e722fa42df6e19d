"""Renewals at the nodes of a cluster, over a blocking connection to each."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import hiredis

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.cluster.slots import (
    Moved,
    SlotMap,
    parse_moved,
    slot_of,
)
from aiorwlock_remote.backends.redis.connection.calls import (
    Call,
    Request,
    Script,
    as_is,
)
from aiorwlock_remote.backends.redis.connection.renewal_channels import (
    BlockingConnection,
)
from aiorwlock_remote.backends.redis.options import Options
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import Clock

MAX_REDIRECTS = 3
"""How often a renewal is sent on, before it is left for the next time."""


class ClusterRenewalChannel:
    """Sends each renewal to the node that has its slot. Any thread may, at once.

    The map is the store's, until a node says otherwise: that one must not change under
    the loop, whose calls may be under way to whom it names. When a node fails the
    others are asked, so that locks are kept over a failover even while the loop is
    blocked.
    """

    def __init__(
        self,
        options: Options,
        clock: Clock,
        scripts: Sequence[Script],
        slots: SlotMap,
        tell: Callable[[SlotMap], object],
    ) -> None:
        """Connects at the first renewal. ``tell(map)`` is called in any thread: it is
        another one now.
        """
        self._tell = tell
        self._options = options
        self._clock = clock
        self._scripts = scripts
        self._told, self._seen = slots, slots.owners
        self._slots = SlotMap(options.seeds)
        self._slots.follow(slots)
        self._links: dict[Server, BlockingNodeConnection] = {}
        self._lock = threading.Lock()
        self._given_up = False

    def lane(self, key: bytes) -> Server | None:
        """The node that has a key, as far as is known."""
        told = self._told.owners
        if told is not self._seen:  # the loop has learnt something
            self._seen = told
            self._slots.follow(self._told)
            self._retire()
        return self._slots.owners[slot_of(key)]

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``Batches``; never raises for a node."""
        deadline = self._clock.now() + timeout
        nobody = BackendUnavailable(
            what=f"{self._options.where}: no node has the slot", nothing_done=True
        )
        outcomes: list[Any] = [nobody] * len(batch)
        left = list(range(len(batch)))
        for _ in range(MAX_REDIRECTS):
            left = self._round(batch, left, outcomes, deadline)
            if not left:
                break
        return [o.error() if isinstance(o, Redirected) else o for o in outcomes]

    def give_up(self) -> None:
        """As ``Batches``, at every node."""
        with self._lock:
            self._given_up = True
            for link in self._links.values():
                link.give_up()

    def abort(self) -> None:
        """A cluster's nodes are left one by one: see ``lane``."""

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()

    def _round(
        self,
        batch: Sequence[Request],
        left: Sequence[int],
        outcomes: list[Any],
        deadline: float,
    ) -> list[int]:
        """Send what is left; what is to be sent again, to another node."""
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
            try:
                found = self._link(server).run_many([batch[i] for i in some], seconds)
            except BackendError as exc:
                found = [exc] * len(some)
                self._ask_another(server, deadline)
            for i, outcome in zip(some, found, strict=True):
                outcomes[i] = outcome
                if isinstance(outcome, Redirected) and outcome.moved is not None:
                    self._slots.note(outcome.moved)
                    self._tell(self._slots)
                if self.lane(_key(batch[i])) != server:
                    again.append(i)
        return again

    def _link(self, server: Server) -> BlockingNodeConnection:
        with self._lock:
            link = self._links.get(server)
            if link is None:
                link = BlockingNodeConnection(
                    server, self._options, self._clock, self._scripts
                )
                self._links[server] = link
            if self._given_up:
                link.give_up()
            return link

    def _ask_another(self, failed: Server, deadline: float) -> None:
        """Who has the slots of a node that failed? One of the others may know."""
        others = [server for server in self._slots.known if server != failed]
        for tried, server in enumerate(others):
            seconds = (deadline - self._clock.now()) / (len(others) - tried + 1)
            if seconds <= 0:
                return
            try:
                self._slots.learn(self._link(server).slots(seconds), server)
            except BackendError:
                continue
            self._retire()
            self._tell(self._slots)
            return

    def _retire(self) -> None:
        """Leave the nodes that have no slots (any more)."""
        there = set(self._slots.primaries)
        with self._lock:
            for server in self._links.keys() - there:
                self._links.pop(server).retire()


class Redirected:
    """A node did not carry it out; where it says to go, if it does."""

    def __init__(self, text: str, server: Server, where: str) -> None:
        """``text``: what it said."""
        self.moved: Moved | None = parse_moved(text, server)
        self._what = f"{where}: {text}"

    def error(self) -> BackendError:
        """For whoever does not go there."""
        return BackendUnavailable(what=self._what, nothing_done=True)


class BlockingNodeConnection(BlockingConnection):
    """A blocking connection to one node, for one thread after the other."""

    def __init__(
        self,
        server: Server,
        options: Options,
        clock: Clock,
        scripts: Sequence[Script],
    ) -> None:
        """Unconnected. ``options`` are the cluster's."""
        super().__init__(
            replace(options, host=server[0], port=server[1]), clock, scripts
        )
        self._server = server
        self._one = threading.Lock()
        self._retired = False

    def retire(self) -> None:
        """Close it, as soon as nobody uses it."""
        self._retired = True
        if self._one.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._one.release()

    def run_many(self, batch: Sequence[Request], timeout: float) -> list[Any]:
        """As ``BlockingConnection``; ``Redirected`` where the node does not have the
        slot.
        """
        with self._alone():
            return super().run_many(batch, timeout)

    def slots(self, timeout: float) -> Any:  # noqa: ANN401 - as it came
        """What the node knows of the cluster.

        Raises:
            BackendError: it did not tell.
        """
        with self._alone():
            (answer,) = self._run([Call(as_is, ("CLUSTER", "SLOTS"))], timeout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._one:
            try:
                yield
            finally:
                if self._retired:
                    self.close()

    def _mapped(self, answer: object) -> object:
        if isinstance(answer, hiredis.ReplyError):
            text = str(answer)
            if text.partition(" ")[0] in {"MOVED", "ASK"}:
                return Redirected(text, self._server, self._options.where)
        return super()._mapped(answer)


def _key(request: Request) -> bytes:
    return cast("bytes", request[1][1])
