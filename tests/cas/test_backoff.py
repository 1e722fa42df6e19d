"""Whoever was refused: at once, then after a pause, from what stands there by then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas import backoff as module
from aiorwlock_remote.cas.backoff import CasBackoff
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import NOTHING, ORDER
from tests.cas.open_stores import acquire

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
        pausing(ORDER, RELEASE, refusals, reads.results.append)
    assert reads.results == [None, None]
    assert reads.pauses == []
    for refusals in (*range(3, 9), 10_000):
        pausing(ORDER, RELEASE, refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]


@pytest.mark.usefixtures("longest")
def test_entering_pauses_grow_longer() -> None:
    """Processes that want one lock at once back off; a holder leaves."""
    reads = Reads()
    pausing = CasBackoff(reads.read, reads.later)
    for refusals in (8, 10, 12, 10_000):
        pausing(ORDER, acquire("t1"), refusals, reads.results.append)
    pauses = [seconds for seconds, _ in reads.pauses]
    assert pauses == [0.128, 0.512, 1.0, 1.0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_retry_uses_the_state_read_after_the_pause(fails: bool) -> None:
    reads = Reads()
    CasBackoff(reads.read, reads.later)(ORDER, RELEASE, 3, reads.results.append)
    assert reads.results == []
    reads.fails = fails
    (_, ends), *_ = reads.pauses
    ends()
    assert reads.results == [None if fails else NOTHING]
