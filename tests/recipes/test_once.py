"""A job that runs once in a period, on one machine of many."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    Locks,
    Unsupported,
)
from aiorwlock_remote.core.commands import Acquire, Adopt, Command, Release, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.locks.client import session_of
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.recipes import OnceArgs
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.runtime.cut_off import Mine, by_scope

pytestmark = pytest.mark.anyio

RUNNING, MARK = ("once", "report"), ("once-period", "report")
DAY = 86400.0


@pytest.fixture
def store() -> FaultyMemory:
    poll_policy = PollPolicy(
        poll_min=0.02, poll_max=0.03, entry_ttl=1.0, claim_window=0.05
    )
    return FaultyMemory(poll_policy=poll_policy)


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect() as locks:
        yield locks


@pytest.fixture
async def rival(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect_rival() as rival:
        yield rival


class Job:
    """Counts its runs; fails as often as given."""

    def __init__(self) -> None:
        self.runs = 0
        self.error: BaseException | None = None

    async def __call__(self) -> None:
        self.runs += 1
        await checkpoint()
        if self.error is not None:
            raise self.error


@pytest.fixture
def job() -> Job:
    return Job()


async def is_free(locks: Locks, name: tuple[str, str] = RUNNING) -> bool:
    return not await locks.mutex(*name).locked()


async def test_once_in_a_period(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    """By the store's clock, from the start, less a tenth."""
    for day in range(1, 4):
        assert await locks.once("report", job, period=DAY)
        for machine in (locks, rival, locks):
            assert not await machine.once("report", job, period=DAY)
        store.advance(0.9 * DAY - 60)
        assert not await rival.once("report", job, period=DAY)
        assert job.runs == day
        store.advance(61)
    assert await rival.once("report", job, period=DAY)
    assert await is_free(rival)


async def test_a_job_does_not_run_early(
    store: FaultyMemory, locks: Locks, job: Job
) -> None:
    assert await locks.once("report", job, period=DAY, early=0)
    store.advance(DAY - 5)
    assert not await locks.once("report", job, period=DAY, early=0)
    store.advance(6)
    assert await locks.once("report", job, period=DAY, early=0)


async def test_names_are_apart(locks: Locks, job: Job) -> None:
    assert await locks.once("report", job, period=DAY)
    assert await locks.once("invoices", job, period=DAY)


async def test_no_two_at_once_also_if_a_job_outlives_its_period(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    async with locks.once("report", period=60) as mine:
        assert mine is not None
        for _ in range(4):
            store.advance(15)
            await mine.extend()  # as the keeper does after a third of the lease
            assert not await rival.once("report", job, period=60)
    assert await rival.once("report", job, period=60)


async def test_as_a_context(locks: Locks, rival: Locks) -> None:
    once = locks.once("report", period=DAY)
    assert repr(once) == "<Once 'once/report'>"
    async with once as mine:
        assert mine
        assert mine.fence > 0
        mine.check()
        with pytest.raises(ConfigurationError, match="entered already"):
            await once.__aenter__()
        async with rival.once("report", period=DAY) as theirs:
            assert theirs is None
    async with once as again:
        assert again is None


async def test_as_a_decorator(locks: Locks, store: FaultyMemory) -> None:
    seen: list[tuple[int, str]] = []

    @locks.once("report", period=DAY)
    async def report(count: int, *, to: str) -> None:
        """Send it."""
        seen.append((count, to))

    assert inspect.iscoroutinefunction(report)
    assert report.__name__ == "report"
    assert report.__doc__ == "Send it."
    assert [await report(1, to="a"), await report(2, to="b")] == [True, False]
    store.advance(DAY)
    assert await report(3, to="c")
    assert seen == [(1, "a"), (3, "c")]


async def test_many_tasks_at_once(locks: Locks, rival: Locks, job: Job) -> None:
    results: list[bool] = []

    async def call(machine: Locks) -> None:
        results.append(await machine.once("report", job, period=DAY))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(call, (locks, rival)[number % 2])
    assert sorted(results) == [False] * 19 + [True]
    assert job.runs == 1


# ------------------------------------------------------- jobs that fail or die


@pytest.mark.parametrize("at_most", [None, 3600])
async def test_a_job_that_raised_is_not_run_again(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job, at_most: float | None
) -> None:
    job.error = Mine()
    with pytest.raises(Mine):
        await locks.once("report", job, period=DAY, at_most=at_most)
    store.advance(3601)
    assert not await rival.once("report", job, period=DAY, at_most=at_most)
    store.advance(DAY)
    job.error = None
    assert await rival.once("report", job, period=DAY, at_most=at_most)


async def test_a_job_that_raised_is_run_again_with_retry(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    terms: OnceArgs = {"period": DAY, "retry": True, "at_least": 60}
    job.error = Mine()
    with pytest.raises(Mine):
        await locks.once("report", job, **terms)
    assert not await rival.once("report", job, **terms)  # before `at_least`
    store.advance(61)
    job.error = None
    assert await rival.once("report", job, **terms)
    assert job.runs == 2
    store.advance(0.9 * DAY - 120)
    assert not await locks.once("report", job, **terms)
    store.advance(121)
    assert await locks.once("report", job, **terms)


@pytest.mark.parametrize(
    "terms", [{"period": DAY, "retry": True}, {"at_least": 60, "retry": True}]
)
async def test_a_retry_may_follow_at_once(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job, terms: OnceArgs
) -> None:
    """At the time at which the run failed, or at which ``at_least`` is over."""
    job.error = Mine()
    for machine in (locks, rival, locks):
        with pytest.raises(Mine):
            await machine.once("report", job, **terms)
        store.advance(terms.get("at_least", 0))
    job.error = None
    assert await rival.once("report", job, **terms)
    assert not await locks.once("report", job, **terms)
    assert job.runs == 4


@pytest.mark.parametrize(
    ("terms", "again"),
    [
        ({"period": DAY}, 0.9 * DAY),
        ({"period": DAY, "at_most": 600}, 600),
        ({"period": DAY, "at_most": 600, "at_least": 500}, 600),
        ({"period": DAY, "retry": True}, 0.3 * DAY),
        ({"at_least": 300}, 300),
        ({"at_least": 300, "at_most": 400}, 400),
    ],
)
async def test_a_machine_that_died(
    store: FaultyMemory, rival: Locks, job: Job, terms: OnceArgs, again: float
) -> None:
    """The lock stays for `at_most`, and as long as the mark does."""
    # Paused and not dead, so that the test ends in order; nothing is sent meanwhile.
    async with store.connect() as paused:
        with suppress(LockLost):
            async with paused.once("report", **terms) as mine:
                assert mine is not None
                store.advance(again - 5)
                assert not await rival.once("report", job, **terms)
                store.advance(6)
                assert await rival.once("report", job, **terms)


async def test_at_least_alone(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    """As ShedLock's lockAtLeastFor: the lock outlives a short job."""
    assert await locks.once("report", job, at_least=60)
    store.advance(55)
    assert not await rival.once("report", job, at_least=60)
    store.advance(6)
    assert await rival.once("report", job, at_least=60)


async def test_closing_the_locks_keeps_the_mark(
    store: FaultyMemory, rival: Locks, job: Job
) -> None:
    async with store.connect() as locks:
        once = locks.once("report", period=DAY)
        async with once as mine:
            assert mine
            await locks.aclose()
    assert not await rival.once("report", job, period=DAY)
    assert await is_free(rival)


async def test_a_job_that_loses_its_lock_is_cancelled(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    with pytest.raises(LockLost):
        async with locks.once("report", period=DAY, at_most=60):
            store.lose(*RUNNING)
            await anyio.sleep_forever()
    # Nothing is recorded: another machine may have begun.
    store.advance(1)
    assert await rival.once("report", job, period=DAY, at_most=60)


# ------------------------------------------------------------------- outages


@pytest.mark.parametrize("fate", [Fate.REFUSE, Fate.LOSE])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("which", [RUNNING, MARK], ids=["running", "mark"])
async def test_a_store_that_is_down_at_the_start(
    store: FaultyMemory,
    locks: Locks,
    rival: Locks,
    job: Job,
    caplog: pytest.LogCaptureFixture,
    fate: Fate,
    count: int,
    which: tuple[str, str],
) -> None:
    """It is waited for; also if a grant was made that nobody knows of."""
    failed = 0

    def first_fail(command: Command) -> Fate:
        nonlocal failed
        is_mark = isinstance(command, Acquire) and _is_mark(command)
        if isinstance(command, Acquire) and is_mark == (which == MARK):
            failed += 1
            if failed <= count:
                return fate
        return Fate.PASS

    store.link.fate = first_fail
    assert await locks.once("report", job, period=DAY)
    assert job.runs == 1
    assert not await rival.once("report", job, period=DAY)
    lines = [r.getMessage() for r in caplog.records if r.name.endswith(".once")]
    assert len(lines) == 1
    assert lines[0].startswith("once_waits_for_store resource=once")


def _is_mark(command: Acquire) -> bool:
    # A mark's lease is the period; the running job's a third.
    return (command.claims[0].lease or 0) > DAY / 2 * 1_000_000


async def test_a_store_that_stays_down(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    with store.down(), pytest.raises((BackendUnavailable, AcquireUncertain)):
        await locks.once("report", job, period=DAY, patience=0.2)
    with store.down(), pytest.raises((BackendUnavailable, AcquireUncertain)):
        await locks.once("report", job, period=DAY, patience=0)
    assert job.runs == 0
    await wait_until(lambda: is_free(rival), 20)
    assert await rival.once("report", job, period=DAY)


async def test_a_lasting_refusal_is_raised(
    store: FaultyMemory, locks: Locks, job: Job
) -> None:
    store.link.fate = lambda _: Fate.FORBID
    with pytest.raises(Unsupported):
        await locks.once("report", job, period=DAY)
    assert job.runs == 0


async def test_a_store_that_goes_down_during_the_job(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job
) -> None:
    """A job without `at_most` sends nothing at its end that could fail."""

    async def cut_off() -> None:
        await job()
        store.link.down = True

    with suppress(BackendUnavailable):  # of the release, which is repeated
        assert await locks.once("report", cut_off, period=DAY)
    assert not await rival.once("report", job, period=DAY)
    store.link.down = False
    await wait_until(lambda: is_free(rival), 20)
    assert not await rival.once("report", job, period=DAY)
    assert job.runs == 1


@pytest.mark.parametrize("fate", [Fate.REFUSE, Fate.LOSE])
@pytest.mark.parametrize("at_least", [0, 60])
async def test_the_end_is_recorded_after_the_outage(
    store: FaultyMemory, locks: Locks, rival: Locks, job: Job, fate: Fate, at_least: int
) -> None:
    failed: list[Command] = []

    def fails(command: Command) -> Fate:
        if isinstance(command, Acquire | Adopt) and len(failed) < 3:
            failed.append(command)
            return fate
        return Fate.PASS

    async def cut_off() -> None:
        await job()
        store.link.fate = fails

    terms: OnceArgs = {"period": DAY, "at_most": 3600, "at_least": at_least}
    assert await locks.once("report", cut_off, **terms)
    store.advance(3601)
    assert not await rival.once("report", job, **terms)
    store.advance(0.9 * DAY)
    assert await rival.once("report", job, **terms)


async def test_an_end_that_is_not_recorded_is_raised(
    store: FaultyMemory,
    locks: Locks,
    rival: Locks,
    job: Job,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lock was lost before the store could note that the job has run."""

    async def cut_off() -> None:
        await job()
        store.link.down = True

    with pytest.raises(LockLost):
        await locks.once("report", cut_off, period=DAY, at_most=0.5)
    store.link.down = False
    store.advance(1)
    assert await rival.once("report", job, period=DAY, at_most=0.5)
    assert job.runs == 2
    lines = [r.getMessage() for r in caplog.records if r.name.endswith(".once")]
    assert [line.partition(" ")[0] for line in lines] == [
        "once_waits_for_store",
        "once_not_recorded",
    ]


async def test_the_jobs_own_error_comes_first(
    store: FaultyMemory, locks: Locks
) -> None:
    async def cut_off() -> None:
        store.link.fate = only(Acquire, Fate.FORBID)
        raise Mine

    with pytest.raises(Mine):
        await locks.once("report", cut_off, period=DAY, at_most=60)


def only(kind: type[Any], fate: Fate) -> Callable[[Command], Fate]:
    return lambda sent: fate if isinstance(sent, kind) else Fate.PASS


# -------------------------------------------------------------- cancellation

TERMS: list[OnceArgs] = [
    {"period": DAY},
    {"period": DAY, "at_most": 3600, "at_least": 60},
    {"period": DAY, "retry": True},
]


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("terms", TERMS, ids=["strict", "at_most", "retry"])
async def test_cancelled_at_every_point(
    store: FaultyMemory, locks: Locks, rival: Locks, terms: OnceArgs, *, late: bool
) -> None:
    """Before the job began, others may run it; later they may not, unless `retry`."""
    for k in range(1, 200):
        job, other = Job(), Job()
        ended = False

        async def history(job: Job = job) -> None:
            nonlocal ended
            await locks.once("report", job, **terms)
            ended = True

        outcome = await by_scope(history(), k, late=late)
        assert outcome.error is None
        await wait_until(lambda: is_free(rival), 20)
        ran = await rival.once("report", other, **terms)
        if job.runs == 0 or not terms.get("retry"):
            assert ran is (job.runs == 0)
        if not outcome.cancelled:
            assert ended
            assert not ran
            break
        store.advance(DAY)
    else:
        pytest.fail("it has more suspensions than that")


class LateStore:
    """A store that carries out some requests when ``next`` is called: for resources of
    one type, from the first command of a class on.
    """

    def __init__(self, locks: Locks, kind: str, first: type[Command]) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._kind, self._first = kind, first
        client = session_of(locks).client
        self._inner, client.store = client.store, self  # type: ignore[assignment]

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        is_late = isinstance(command, self._first) or bool(self.waiting)
        if resource.type != self._kind or not is_late:
            return self._inner.step(resource, command)
        reply: Pending[Reply] = Pending()

        def carry_out() -> None:
            done = self._inner.step(resource, command)
            done.add_done_callback(lambda done: reply.set_result(done.result()))

        self.waiting.append(carry_out)
        return reply

    def next(self) -> None:
        """Carry out the oldest request."""
        self.waiting.popleft()()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("terms", TERMS, ids=["strict", "at_most", "retry"])
async def test_a_cancelled_start_of_which_the_mark_is_late(
    locks: Locks, rival: Locks, job: Job, terms: OnceArgs
) -> None:
    """Over a pool, the mark's request may come after the release of the job's lock."""
    late = LateStore(locks, MARK[0], Acquire)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(locks.once, "report", Job(), **terms))  # type: ignore[arg-type]
        await wait_until(lambda: len(late.waiting) == 1, 20)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await wait_until(lambda: len(late.waiting) >= 2, 20)
            late.next()
            # The mark is there, and is to be withdrawn: whoever has the lock of the job
            # would take it for that of a run.
            assert not await is_free(rival, MARK)
            assert not await rival.once("report", job, **terms)
            assert not await is_free(rival)
            while late.waiting:
                late.next()
                await checkpoint()
    assert await is_free(rival)
    assert await rival.once("report", job, **terms)


async def test_a_failed_run_ends_when_its_lock_is_free(
    locks: Locks, rival: Locks, job: Job
) -> None:
    """So a retry of another machine, over another connection, is not refused."""
    late = LateStore(locks, RUNNING[0], Release)
    failing, ended = Job(), anyio.Event()
    failing.error = Mine()

    async def fail() -> None:
        with pytest.raises(Mine):
            await locks.once("report", failing, period=DAY, retry=True)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        await wait_until(lambda: bool(late.waiting), 20)
        await anyio.wait_all_tasks_blocked()
        assert not await is_free(rival)
        assert not ended.is_set()
        while not ended.is_set():
            if late.waiting:
                late.next()
            await checkpoint()
        assert await rival.once("report", job, period=DAY, retry=True)


# ------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({}, "needs a period, or at_least"),
        ({"period": 0}, "period=0 is out of range"),
        ({"period": "1d"}, "period must be a number"),
        ({"period": 60, "early": 60}, "leaves too little of the period"),
        ({"period": 60, "early": -1}, "early=-1 is out of range"),
        ({"period": 60, "at_least": 30, "at_most": 20}, "less than at_least"),
        ({"period": 60, "retry": 1}, "retry=1 is not True or False"),
        ({"period": 60, "at_least": 0.1}, "at_least=0.1 is out of range"),
        ({"period": 60, "every": 1}, "unknown option 'every'"),
        ({"period": 60, "patience": None}, "patience must be a number"),
    ],
)
async def test_unsupported_uses_are_refused(
    locks: Locks, terms: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        locks.once("report", **terms)


async def test_options_of_connect_do_not_bend_it(store: FaultyMemory, job: Job) -> None:
    async with store.connect(
        lease=None, on_lost="flag", max_hold=1, lock_delay=3600, max_waiters=1, margin=9
    ) as locks:
        assert await locks.once("report", job, period=60)
        store.advance(55)
        assert await locks.once("report", job, period=60)
