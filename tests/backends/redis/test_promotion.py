"""Which replica counts as promoted, by a clock that stands still; no server is asked.

With servers: ``test_planned_failover.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aiorwlock_remote.backends.redis.addresses import Server
from aiorwlock_remote.backends.redis.connection.connector import replicas_in
from aiorwlock_remote.backends.redis.promotion import (
    OPEN_TIMEOUT,
    SENTINELS_DECIDE,
    ReplicaWatch,
)
from aiorwlock_remote.backends.redis.sentinel import PrimaryFinder, Sentinels
from aiorwlock_remote.errors import BackendUnavailable, Unsupported
from tests.fixed_clock import StandingClock

A, B, C = ("10.0.0.1", 6379), ("10.0.0.2", 6379), ("10.0.0.3", 6380)
OURS, OTHERS, NONE = "a" * 40, "b" * 40, "0" * 40


def lists(*replicas: Server, role: str = "master") -> bytes:
    """What a server replies to INFO."""
    lines = ["# Replication", f"role:{role}", f"connected_slaves:{len(replicas)}"]
    lines += [
        f"slave{i}:ip={ip},port={port},state=online,offset=14,lag=0"
        for i, (ip, port) in enumerate(replicas)
    ]
    return "\r\n".join([*lines, f"master_replid:{OURS}", ""]).encode()


class Watched:
    """A watch, and what it meets at each replica: the history that it goes on with."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.finder = PrimaryFinder(Sentinels("shop", (("s", 1),)), self.clock)
        self.doubts: list[float] = []
        self.finder.on_doubt(lambda: self.doubts.append(self.clock.seconds))
        self.watch = ReplicaWatch(self.finder, self.clock, self._channel_to)
        self.promoted: dict[Server, str] = {}
        self.takes = 0.0
        """Seconds until a replica that is none of those is given up."""
        self.asked: list[Server] = []
        self.closed: list[Server] = []

    def successor(self, timeout: float = 9) -> Server | None:
        found: Any = self.watch.successor(timeout)
        return None if found is None else found.server

    def _channel_to(self, server: Server) -> Any:  # noqa: ANN401 - what the watch needs
        return Channel(self, server)


class Channel:
    def __init__(self, watched: Watched, server: Server) -> None:
        self.watched = watched
        self.server = server

    def open(self, timeout: float) -> None:
        watched = self.watched
        watched.asked.append(self.server)
        if self.server not in watched.promoted:
            watched.clock.seconds += min(watched.takes, timeout)
            raise BackendUnavailable(what="it is a replica")

    def run_many(self, batch: Sequence[Any], timeout: float) -> list[Any]:
        assert batch == [(None, ("INFO", "replication"))]
        assert timeout > 0
        history = self.watched.promoted[self.server]
        return [f"role:master\r\nmaster_replid2:{history}\r\n".encode()]

    def close(self) -> None:
        self.watched.closed.append(self.server)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_replica_that_left_and_is_a_primary_was_promoted(watched: Watched) -> None:
    """One that is still listed is not asked; the Sentinels are, each time."""
    watched.promoted = {B: OURS, C: OURS}
    watched.watch.note(lists(B, C))
    assert watched.successor() is None
    assert watched.asked == []
    watched.watch.note(lists(C))
    assert watched.successor() == B
    watched.clock.seconds += 0.9 * SENTINELS_DECIDE
    assert watched.successor() == B
    assert watched.asked == [B, B]
    assert len(watched.doubts) == 2


def test_the_store_may_have_seen_the_replicas_before(watched: Watched) -> None:
    """When it connected; the keeper had nothing to renew until after the promotion."""
    watched.promoted = {B: OURS}
    watched.finder.saw_replicas([B, C], 0)
    watched.watch.note(lists(C))
    assert watched.successor() == B


@pytest.mark.parametrize("history", [OTHERS, NONE])
def test_a_server_without_our_data_was_not_promoted(
    watched: Watched, history: str
) -> None:
    """It was restarted without its configuration, say, and is empty."""
    watched.promoted = {B: history}
    watched.watch.note(lists(B))
    watched.watch.note(lists())
    assert watched.successor() is None
    assert watched.asked == [B]
    assert watched.doubts == []


def test_a_replica_detached_by_hand_is_no_primary(watched: Watched) -> None:
    """The Sentinels go on to name another; until it has been a replica again."""
    watched.promoted = {B: OURS}
    watched.watch.note(lists(B))
    watched.watch.note(lists())
    assert watched.successor() == B
    watched.clock.seconds += SENTINELS_DECIDE
    assert watched.successor() is None
    watched.clock.seconds += 1000
    watched.watch.note(lists())
    assert watched.successor() is None
    assert watched.closed == [B]
    watched.watch.note(lists(B))
    watched.watch.note(lists())
    assert watched.successor() == B


def test_a_former_primary_is_not_asked(watched: Watched) -> None:
    """It is writable until it is demoted, and was a replica before that."""
    watched.finder.saw_replicas([A, B], 0)
    watched.finder._known = 1, C
    watched.finder._note([(2, A)], watched.clock.seconds)
    watched.finder.saw_replicas([B], 0)  # an answer of the time before the switch
    watched.promoted = {B: OURS, C: OURS}
    watched.watch.note(lists())
    assert watched.successor() is None
    assert watched.asked == []


def test_a_replica_that_is_away_costs_a_part_of_the_time(watched: Watched) -> None:
    """The longer it is away, the seldomer it is asked."""
    watched.takes = OPEN_TIMEOUT
    watched.watch.note(lists(B))
    watched.watch.note(lists())
    begun = watched.clock.seconds
    while watched.clock.seconds < begun + 100:
        watched.watch.note(lists())
        assert watched.successor() is None
        watched.clock.seconds += 0.1
    assert 5 < len(watched.asked) < 30
    assert watched.asked == [B] * len(watched.asked)


def test_the_batch_keeps_two_thirds_of_its_time(watched: Watched) -> None:
    watched.takes = 9
    watched.watch.note(lists(B))
    watched.watch.note(lists())
    begun = watched.clock.seconds
    assert watched.successor(timeout=0.3) is None
    assert watched.clock.seconds - begun == pytest.approx(0.1)


@pytest.mark.parametrize(
    "reply",
    [Unsupported(what="NOPERM"), lists(role="slave"), b"", b"slave0:ip=,port=x"],
    ids=["refused", "demoted", "nothing", "nonsense"],
)
def test_a_reply_that_tells_nothing_changes_nothing(
    watched: Watched, reply: object
) -> None:
    watched.promoted = {B: OURS}
    watched.watch.note(lists(B))
    watched.watch.note(reply)
    assert watched.successor() is None


@pytest.mark.parametrize(
    "entry",
    [
        "slave0:ip=,port=6379",
        "slave0:ip=a",
        "slave0:ip=a,port=",
        "slave0:ip=a,port=65536",
        "slave0:ip=a,port=²",
        "slave_repl_offset:ip=a,port=1",
        "slave0",
    ],
)
def test_an_entry_without_address_is_no_replica(entry: str) -> None:
    assert replicas_in(f"{entry}\r\nslave1:ip=::1,port=7\r\n".encode()) == (("::1", 7),)


def test_the_replicas_are_forgotten_with_the_primary(watched: Watched) -> None:
    watched.promoted = {B: OURS}
    watched.watch.note(lists(B, C))
    watched.watch.note(lists())
    watched.watch.close()
    assert sorted(watched.closed) == [B, C]
    assert watched.successor() is None
