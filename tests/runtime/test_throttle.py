"""Acquires are held back while too many are under way, or renewals are late."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from aiorwlock_remote import Closed, Held, LockTimeout, connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Renewal, RenewerBase
from aiorwlock_remote.runtime import store_client
from aiorwlock_remote.runtime.lease import Lease, LeaseTerms
from aiorwlock_remote.runtime.lease_keeper import LATE_FRACTION, RenewalWorker
from aiorwlock_remote.runtime.store_client import (
    INITIAL_WINDOW,
    MAX_WINDOW,
    MIN_WINDOW,
    SLOW_REPLY,
    AcquireThrottle,
)
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased

pytestmark = pytest.mark.anyio


class Acquires:
    """Tasks that send a request each, when they may."""

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.admission = AcquireThrottle(self.clock)
        self.requests: list[Pending[None]] = []

    async def acquire(self) -> None:
        if self.admission.full:
            await self.admission.turn(None)
        request: Pending[None] = Pending()
        self.requests.append(request)
        self.admission.sent(request)
        self.admission.let_in()


async def settled() -> None:
    """All that can go on has gone on."""
    await anyio.wait_all_tasks_blocked()


async def test_so_many_are_under_way_at_most_and_each_answer_lets_one_in() -> None:
    acquires = Acquires()
    async with anyio.create_task_group() as tasks:
        for _ in range(INITIAL_WINDOW + 3):
            tasks.start_soon(acquires.acquire)
        await settled()
        assert len(acquires.requests) == INITIAL_WINDOW
        acquires.clock.seconds += 2 * SLOW_REPLY  # too slow to let more in than were
        acquires.requests[0].set_exception(BackendUnavailable(what="lost"))
        await settled()
        assert len(acquires.requests) == INITIAL_WINDOW
        for request in acquires.requests[1 : INITIAL_WINDOW // 2 + 2]:
            request.set_result(None)
        await settled()
        assert len(acquires.requests) == INITIAL_WINDOW + 2
        acquires.requests[INITIAL_WINDOW // 2 + 2].set_result(None)


@pytest.mark.parametrize(
    ("takes", "finally_"), [(SLOW_REPLY, MAX_WINDOW), (2 * SLOW_REPLY, MIN_WINDOW)]
)
async def test_as_many_as_the_store_answers_in_time(
    takes: float, finally_: int
) -> None:
    """One more for each answer in time; half of them for those sent meanwhile."""
    acquires = Acquires()
    for _ in range(MAX_WINDOW):
        await acquires.acquire()
        acquires.clock.seconds += takes
        acquires.requests[-1].set_result(None)
    while not acquires.admission.full:
        await acquires.acquire()
    assert len(acquires.requests) == MAX_WINDOW + finally_


async def test_one_at_a_time_while_renewals_are_late() -> None:
    acquires = Acquires()
    acquires.admission.behind = True
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(acquires.acquire)
        for sent in (1, 2, 3):
            await settled()
            assert len(acquires.requests) == sent
            acquires.requests[-1].set_result(None)
        await settled()
        acquires.admission.behind = False
        acquires.requests[-1].set_result(None)
    assert len(acquires.requests) == 6


async def test_who_needs_no_request_lets_the_next_one_in() -> None:
    """As a task that joins others of this process which wait already."""
    async with connect("memory://") as locks:
        throttle = locks._session.client.throttle
        under_way: Pending[None] = Pending()
        entered: list[str] = []

        async def enter(name: str) -> None:
            async with locks.mutex("throttled", name):
                entered.append(name)

        async with anyio.create_task_group() as tasks:
            held = await locks.mutex("throttled", "held").acquire()
            tasks.start_soon(enter, "held")
            await settled()
            throttle.behind = True
            throttle.sent(under_way)
            tasks.start_soon(enter, "held")
            await settled()
            tasks.start_soon(enter, "free")
            await settled()
            assert not entered
            under_way.set_result(None)
            await settled()
            assert entered == ["free"]
            assert await held.release()
        assert entered == ["free", "held", "held"]


@pytest.mark.parametrize("first", ["cancelled", "answered"])
async def test_a_cancelled_acquire_admits_the_next_one(first: str) -> None:
    acquires, scope = Acquires(), anyio.CancelScope()
    acquires.admission.behind = True

    async def cancelled() -> None:
        with scope:
            await acquires.admission.turn(None)
            acquires.admission.let_in()

    await acquires.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancelled)
        await settled()
        tasks.start_soon(acquires.acquire)
        await settled()
        if first == "cancelled":
            scope.cancel()
        acquires.requests[0].set_result(None)
        scope.cancel()
    assert len(acquires.requests) == 2


async def test_a_held_back_acquire_keeps_its_timeout_and_ends_with_the_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_client, "INITIAL_WINDOW", 0)
    monkeypatch.setattr(store_client, "MAX_WINDOW", 0)
    async with connect("memory://") as locks:
        helds: list[Held | None] = []

        async def take() -> None:
            helds.append(await locks.mutex("held", 1).try_acquire())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
        with pytest.raises(LockTimeout):
            await locks.mutex("held", 1).acquire(timeout=0.01)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(Closed):
                    await locks.mutex("held", 1).acquire()

            tasks.start_soon(wait)
            await settled()
            await locks.aclose()


@dataclass
class SlowStore(RenewerBase):
    """Renews on demand; ``behind_values``: the values that ``behind`` was set to."""

    behind_values: list[bool] = field(default_factory=list[bool])
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    fails: bool = False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        del timeout
        if self.fails:
            raise BackendUnavailable(what="it is away")
        return [Grant(item.ticket, Mode.WRITE, 1, 0, None) for item in batch]

    @property
    def behind(self) -> bool:
        return self.behind_values[-1]

    @behind.setter
    def behind(self, late: bool) -> None:
        self.behind_values.append(late)


@pytest.mark.parametrize("margin", [None, 0.0])
@pytest.mark.parametrize("lease", [0.3, 6.0, 30.0])
def test_renewals_that_could_have_been_asked_for_long_ago_are_late(
    lease: float, margin: float | None
) -> None:
    clock, store = StandingClock(), SlowStore()
    looked = threading.Semaphore(0)

    def again(_: Lease) -> None:
        looked.release()

    renewing = RenewalWorker(lambda: store, clock, again, store)  # type: ignore[arg-type]
    one = leased(LeaseTerms(lease, margin), clock)

    def renewed(after: float) -> list[bool]:
        """What is said meanwhile, if it comes so long after the one before."""
        store.behind_values.clear()
        clock.seconds += after * lease
        renewing.renew([one])
        for _ in range(2):  # it is handed over, and it was renewed
            assert looked.acquire(timeout=30)
        return list(store.behind_values)

    assert renewed(1 / 3) == [False]
    assert renewed(LATE_FRACTION + 0.01) == [True, False]
    store.fails = True
    assert renewed(1 / 3) == [False]
    assert renewed(LATE_FRACTION) == [False], "that is the store's fault"
    renewing.close()
