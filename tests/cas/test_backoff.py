"""Whoever was refused: at once, then after a pause, from what stands there by then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas import backoff as module
from aiorwlock_remote.cas.backoff import (
    MAX_ENTERING_PAUSE,
    MAX_PAUSE,
    CasBackoff,
    longest_pause,
)
from aiorwlock_remote.core.commands import Acquire, Claim, Release
from aiorwlock_remote.core.doorman import Doorman, QueueEntry
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import NOTHING, ORDER

RELEASE = Release("t1")


class Reads:
    """Reads return at once; pauses end when the test says so."""

    def __init__(self) -> None:
        self.fails = False
        self.pauses: list[tuple[float, Callable[[], None]]] = []
        self.results: list[StoredState | None] = []

    def read(self, _: Resource) -> Pending[StoredState]:
        read: Pending[StoredState] = Pending()
        if self.fails:
            read.set_exception(BackendUnavailable(what="not connected"))
        else:
            read.set_result(NOTHING)
        return read

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        self.pauses.append((seconds, function))


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance has it that each pause is as long as it may be."""
    monkeypatch.setattr(module, "random", lambda: 1.0)


@pytest.mark.usefixtures("longest")
def test_twice_at_once_then_longer_each_time_up_to_a_limit() -> None:
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    for refusals in range(1, 3):
        pausing(ORDER, MAX_PAUSE, refusals, reads.results.append)
    assert reads.results == [None, None]
    assert reads.pauses == []
    for refusals in (*range(3, 9), 10_000):
        pausing(ORDER, MAX_PAUSE, refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]


@pytest.mark.usefixtures("longest")
def test_entering_pauses_grow_longer() -> None:
    """Processes that want one lock at once back off; a holder leaves."""
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    for refusals in (8, 10, 12, 10_000):
        pausing(ORDER, MAX_ENTERING_PAUSE, refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.128, 0.512, 1.0, 1.0]


def test_the_nearer_its_turn_the_shorter_the_pauses_of_a_waiter() -> None:
    """Without an entry they are the longest, and a holder's are the shortest."""
    queue = tuple(
        QueueEntry(number, f"client{number}", Mode.WRITE, 0, 10**9, 10**6)
        for number in range(60)
    )
    state = replace(NOTHING, record=Doorman(queue=queue))

    def longest(client_id: str) -> float:
        claims = (Claim("t1", 10**7),)
        command = Acquire(claims, Mode.WRITE, client_id=client_id, may_queue=True)
        return longest_pause(command, state)

    assert longest("client0") == longest("client16") == MAX_PAUSE
    assert MAX_PAUSE < longest("client30") < longest("client59") < MAX_ENTERING_PAUSE
    assert longest("another") == MAX_ENTERING_PAUSE
    assert longest_pause(RELEASE, state) == MAX_PAUSE


@pytest.mark.parametrize("fails", [False, True])
def test_a_retry_uses_the_state_read_after_the_pause(fails: bool) -> None:
    reads = Reads()
    CasBackoff(reads.read, reads.later)(ORDER, MAX_PAUSE, 3, reads.results.append)
    assert reads.results == []
    reads.fails = fails
    (_, ends), *_ = reads.pauses
    ends()
    assert reads.results == [None if fails else NOTHING]
