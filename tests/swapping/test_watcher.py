"""The poller: how often it reads, and how often it rings."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Record
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.runtime.loops import current_host
from aiorwlock_remote.swapping import State
from aiorwlock_remote.swapping import watcher as module
from aiorwlock_remote.swapping.watcher import Looks, Watcher
from aiorwlock_remote.testing.conformance.party import until
from tests.swapping.party import ORDER

pytestmark = pytest.mark.anyio


class Reads:
    """What stands there, told a step of the loop later, and how often it was read."""

    def __init__(self) -> None:
        self.host = current_host()
        self.state = State(Record(), None, 1)
        self.times: list[float] = []
        self.rung = 0

    def read(self, _: Resource) -> Pending[State]:
        self.times.append(self.host.clock.now())
        read: Pending[State] = Pending()
        self.host.call_soon(lambda: read.resolve(self.state))
        return read

    def ring(self, _: Resource, __: float) -> None:
        self.rung += 1

    async def were(self, number: int) -> None:
        async def read() -> bool:
            return len(self.times) >= number

        await until(read, 30)


@pytest.fixture
async def reads() -> Reads:
    return Reads()


@pytest.fixture
async def watcher(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Watcher]:
    """It looks every 5 to 30 ms, without chance."""
    monkeypatch.setattr(module, "uniform", lambda *_: 1.0)
    monkeypatch.setattr(module, "STRETCH", 2.0)
    monkeypatch.setattr(module, "AGAIN", 600)
    watcher = Watcher(
        reads.read,
        lambda _: 1_000,
        lambda *_: None,
        "g",
        reads.host,
        reads.ring,
        Looks(near=0.03, far=0.03),
    )
    yield watcher
    watcher.close()


async def test_it_rings_once_for_the_same_reason(
    reads: Reads, watcher: Watcher
) -> None:
    """Else each look would cost a transaction; a new reason is told at once."""
    watcher.watch(ORDER)  # and no place is there: somebody deleted the row
    await reads.were(5)
    assert reads.rung == 1
    reads.state = State(Record(), None, 2)
    await reads.were(len(reads.times) + 3)
    assert reads.rung == 2


async def test_it_rings_again_when_that_may_have_been_in_vain(
    reads: Reads, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.05)
    watcher.watch(ORDER)

    async def rung() -> bool:
        return reads.rung >= 3

    await until(rung, 30)


async def test_as_long_as_nothing_changes_it_reads_more_seldom(
    reads: Reads, watcher: Watcher
) -> None:
    watcher.watch(ORDER)
    await reads.were(6)
    between = [b - a for a, b in zip(reads.times, reads.times[1:], strict=False)]
    assert all(pause >= 0.02 for pause in between[3:])


async def test_many_that_are_watched_share_the_reads(
    reads: Reads, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    for number in range(3):
        watcher.watch(Resource("order", str(number)))
    await reads.were(7)
    assert reads.times[6] - reads.times[0] >= 0.4
