"""The poller: how often it reads, and how often it rings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from threading import Event

import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas import poller as module
from aiorwlock_remote.cas.poller import PollIntervals, StatePoller
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord, QueueEntry
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.cas.lossy_clients import ORDER
from tests.fixed_clock import StandingClock

pytestmark = pytest.mark.anyio


class Reads:
    """The stored state, returned one loop step later, and how often it was read."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.host = current_event_loop(clock)
        self.state = StoredState(Doorman(), None, 1)
        self.times: list[float] = []
        self.seen: list[tuple[Resource, StoredState]] = []
        self.rung = 0
        self.shown: int | None = None
        self.pushed: list[PushedGrant | None] = []
        self.missed = Event()
        self.meanwhile: Callable[[], object] = lambda: None

    def read(self, _: Resource) -> Pending[StoredState]:
        self.times.append(self.host.clock.now())
        self.meanwhile()
        read: Pending[StoredState] = Pending()
        self.host.call_soon(lambda: read.set_result(self.state))
        return read

    def shown_by(self, _: StoredState) -> int | None:
        return self.shown

    def ring(
        self, _: Resource, __: float, pushed: PushedGrant | None = None, /
    ) -> None:
        self.rung += 1
        self.pushed.append(pushed)

    async def were(self, number: int) -> None:
        async def read() -> bool:
            return len(self.times) >= number

        await wait_until(read, 30)


def watching(reads: Reads, longest: float, hinted: float = 3600.0) -> StatePoller:
    return StatePoller(
        reads.read,
        lambda _: 1_000,
        reads.shown_by,
        lambda resource, state: reads.seen.append((resource, state)),
        "g",
        reads.host,
        reads.ring,
        PollIntervals(near=longest, far=longest, hinted=hinted),
        reads.missed.set,
    )


async def a_few_steps() -> None:
    """Of the loop: what is due is read, and answered."""
    for _ in range(20):
        await checkpoint()


@pytest.fixture
async def reads() -> Reads:
    return Reads()


@pytest.fixture
async def watcher(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StatePoller]:
    """It looks every 5 to 30 ms, without chance."""
    monkeypatch.setattr(module, "random", lambda: 0.5)
    monkeypatch.setattr(module, "PAUSE_GROWTH", 2.0)
    monkeypatch.setattr(module, "REPEAT_INTERVAL", 600)
    watcher = watching(reads, 0.03)
    yield watcher
    watcher.close()


async def test_it_rings_once_for_the_same_reason(
    reads: Reads, watcher: StatePoller
) -> None:
    """Else each look would cost a transaction; a new reason is reported at once."""
    watcher.watch(ORDER)  # and no place is there: somebody deleted the row
    await reads.were(5)
    assert reads.rung == 1
    reads.state = StoredState(Doorman(), None, 2)
    await reads.were(len(reads.times) + 3)
    assert reads.rung == 2


async def test_each_state_that_is_read_is_passed_on(
    reads: Reads, watcher: StatePoller
) -> None:
    watcher.watch(ORDER)
    await reads.were(2)
    assert reads.seen[0] == (ORDER, reads.state)


async def test_a_resource_that_is_left_is_read_no_more(
    reads: Reads, watcher: StatePoller
) -> None:
    """The answer to a read that was under way tells nobody either."""
    watcher.watch(ORDER)
    reads.meanwhile = lambda: watcher.unwatch(ORDER)
    await reads.were(1)
    await a_few_steps()
    assert not watcher.look_now(ORDER)
    assert (len(reads.times), reads.seen, reads.rung) == (1, [], 0)


async def test_the_poller_wakes_again_after_a_wake_up_in_vain(
    reads: Reads, watcher: StatePoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPEAT_INTERVAL", 0.05)
    watcher.watch(ORDER)

    async def rung() -> bool:
        return reads.rung >= 3

    await wait_until(rung, 30)


async def test_as_long_as_nothing_changes_it_reads_more_seldom(
    reads: Reads, watcher: StatePoller
) -> None:
    watcher.watch(ORDER)
    await reads.were(6)
    between = [b - a for a, b in zip(reads.times, reads.times[1:], strict=False)]
    assert all(pause >= 0.02 for pause in between[3:])


@pytest.mark.slow
async def test_many_that_are_watched_share_the_reads(
    reads: Reads, watcher: StatePoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_READS_PER_SECOND", 10)
    for number in range(3):
        watcher.watch(Resource("order", str(number)))
    await reads.were(7)
    assert reads.times[6] - reads.times[0] >= 0.4


async def test_when_something_has_changed_it_reads_often_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was here for a moment may be gone in the next."""
    monkeypatch.setattr(module, "random", lambda: 0.5)
    monkeypatch.setattr(module, "PAUSE_GROWTH", 2.0)
    monkeypatch.setattr(module, "MAX_READS_PER_SECOND", 1e6)
    clock = StandingClock()
    reads = Reads(clock)
    watcher = watching(reads, 3600.0)

    async def reads_after(seconds: float) -> bool:
        clock.seconds += seconds
        before = len(reads.times)
        watcher.watch(Resource("woken", "1"))  # and read
        await a_few_steps()
        return len(reads.times) == before + 2

    watcher.watch(ORDER)
    await a_few_steps()
    for pause in (0.01, 0.02, 0.04):
        assert not await reads_after(0.9 * pause)
        assert await reads_after(0.2 * pause)
    reads.state = StoredState(Doorman(last=7), MutexRecord("other", None), 2)
    assert await reads_after(0.1)
    assert await reads_after(0.011)
    assert not await reads_after(0.011)
    # Somebody has been in and out again between two looks: all is as before.
    reads.state = StoredState(Doorman(last=8), MutexRecord("other", None), 3)
    assert await reads_after(0.1)
    assert await reads_after(0.011)
    watcher.close()


PUSHED = Grant("mine", Mode.WRITE, since=900, expires=300_900, fence=7)


def pushed_to(client_id: str) -> StoredState:
    """Return a record in which a step has granted the lock to a queue entry."""
    entry = QueueEntry(
        *(1, client_id, Mode.WRITE, 0, 9_000_000, 300_000),
        claim_until=300_900,
        ticket="mine",
        lease=9_000_000,
    )
    seat = MutexRecord("mine,0", 300_900)
    record = Doorman(
        grants=(PUSHED,), queue=(entry,), last=7, seat=seat.value, pushed=True
    )
    return StoredState(record, seat, 2)


@pytest.mark.parametrize("client_id", ["g", "another"])
async def test_a_pushed_grant_is_reported_with_the_time_of_the_read(
    client_id: str,
) -> None:
    clock = StandingClock()
    reads = Reads(clock)
    reads.shown = 1_000
    reads.state = pushed_to(client_id)
    reads.meanwhile = lambda: setattr(clock, "seconds", clock.seconds + 0.5)
    sent_at = clock.seconds
    watcher = watching(reads, 3600.0)
    watcher.watch(ORDER)
    await a_few_steps()
    if client_id == "g":
        (pushed,) = reads.pushed
        assert pushed == PushedGrant.of(PUSHED)
        assert pushed.proves("mine")
        assert pushed.seen is not None
        assert pushed.seen.now == 1_000
        assert pushed.seen.sent_at == sent_at
    else:
        assert not any(reads.pushed)
    watcher.close()


async def test_where_no_server_clock_ends_leases_a_grant_is_a_wake_up() -> None:
    reads = Reads(StandingClock())
    reads.state = pushed_to("g")
    watcher = watching(reads, 3600.0)
    watcher.watch(ORDER)
    await a_few_steps()
    assert reads.pushed == [None]
    watcher.close()


@pytest.fixture
async def hinted() -> AsyncIterator[tuple[Reads, StatePoller]]:
    """Time stands still, and a poller that others hint to."""
    reads = Reads(StandingClock())
    watcher = watching(reads, 0.06, hinted=60.0)
    watcher.hints_come = True
    watcher.watch(ORDER)
    await a_few_steps()
    assert len(reads.times) == 1
    yield reads, watcher
    watcher.close()


async def test_a_hint_is_read_at_once(hinted: tuple[Reads, StatePoller]) -> None:
    reads, watcher = hinted
    watcher.look_now(Resource("another", "1"))
    await a_few_steps()
    assert len(reads.times) == 1
    watcher.look_now(ORDER)
    await a_few_steps()
    assert len(reads.times) == 2


async def test_a_hint_during_a_read_is_another_read(
    hinted: tuple[Reads, StatePoller],
) -> None:
    """What is under way may show how things stood before the hint."""
    reads, watcher = hinted
    for _ in range(5):
        watcher.look_now(ORDER)
    await a_few_steps()
    assert len(reads.times) == 3


async def test_while_hints_come_reads_are_seldom(
    hinted: tuple[Reads, StatePoller],
) -> None:
    """Also after a change: the next one will be hinted at."""
    reads, watcher = hinted
    clock = reads.host.clock
    assert isinstance(clock, StandingClock)
    reads.state = StoredState(Doorman(last=7), MutexRecord("other", None), 2)
    watcher.look_now(ORDER)
    await a_few_steps()
    clock.seconds += 40.0
    watcher.watch(Resource("woken", "1"))  # the polling task looks at its clock
    await a_few_steps()
    assert len(reads.times) == 3
    clock.seconds += 40.0
    watcher.watch(Resource("woken", "1"))
    await a_few_steps()
    assert len(reads.times) == 5


async def test_a_turn_that_was_not_hinted_at_is_reported(
    hinted: tuple[Reads, StatePoller],
) -> None:
    """The channel may have lost its hint, or be silent."""
    reads, watcher = hinted
    clock = reads.host.clock
    assert isinstance(clock, StandingClock)
    reads.state = StoredState(Doorman(), None, 2)  # our entry is gone: ask again
    watcher.look_now(ORDER)
    await a_few_steps()
    assert (reads.rung, reads.missed.is_set()) == (2, False)
    reads.state = StoredState(Doorman(), None, 3)
    clock.seconds += 80.0
    watcher.watch(Resource("woken", "1"))
    await a_few_steps()
    assert reads.missed.is_set()


@pytest.mark.parametrize(("ahead", "reads_again"), [(56, False), (2, True)])
async def test_an_entry_far_from_the_head_is_read_less_often(
    ahead: int, reads_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the queue moves, and although a lease in the way ends."""
    monkeypatch.setattr(module, "random", lambda: 0.5)
    clients = [*(f"other{number}" for number in range(ahead)), "g"]
    queue = tuple(
        QueueEntry(number, client_id, Mode.WRITE, 0, 10_000_000, 100_000)
        for number, client_id in enumerate(clients, 1)
    )
    grant = Grant("t", Mode.WRITE, 1, 0, 101_000)  # in a tenth of a second
    doorman = Doorman(1, (grant,), queue, number=len(queue), seat="t,5")
    clock = StandingClock()
    reads = Reads(clock)
    reads.state = StoredState(doorman, MutexRecord("t,5", 101_000), 1)
    watcher = watching(reads, 0.25)
    watcher.watch(ORDER)
    await a_few_steps()
    clock.seconds += 0.3
    watcher.watch(Resource("woken", "1"))  # the polling task looks at its clock
    await a_few_steps()
    assert reads.times == [1.0] + [1.3] * (1 + reads_again)
    clock.seconds += 0.2
    watcher.watch(Resource("woken", "1"))
    await a_few_steps()
    assert len(reads.times) == 4 + reads_again
    watcher.close()
