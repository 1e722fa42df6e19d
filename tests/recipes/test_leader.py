"""Leader election: who stands by leads, also after losses and outages."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    BackendUnavailable,
    Closed,
    ConfigurationError,
    Held,
    LockLost,
    Locks,
    NotOwner,
    Unsupported,
)
from aiorwlock_remote.core.commands import Acquire
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.recipes.leader import Leader
from aiorwlock_remote.recipes.outage import MAX_PAUSE, Outage
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.runtime.cut_off import Mine, by_scope

pytestmark = pytest.mark.anyio

NAME = ("leader", "scheduler")
LEASE = 30.0


@pytest.fixture
def store() -> FaultyMemory:
    poll_policy = PollPolicy(
        poll_min=0.02, poll_max=0.03, entry_ttl=1.0, claim_window=0.05
    )
    return FaultyMemory(poll_policy=poll_policy)


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect(lease=LEASE) as locks:
        yield locks


@pytest.fixture
async def rival(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect_rival(lease=LEASE) as rival:
        yield rival


async def is_free(locks: Locks) -> bool:
    return not await locks.mutex(*NAME).locked()


async def test_one_leads_and_another_stands_by(locks: Locks, rival: Locks) -> None:
    async with locks.leader("scheduler") as first:
        held = await first.elected()
        assert first.is_leader
        assert first.fence == held.fence
        async with rival.leader("scheduler") as second:
            await wait_until(lambda: _waits(rival), 20)
            assert second.fence is None
            seen = await second.info()
            assert [one.reason for one in seen.holders] == ["leading"]
        assert not await _waits(locks)
    assert repr(first).endswith("stands by>")
    assert await is_free(rival)


async def _waits(locks: Locks) -> bool:
    return bool((await locks.mutex(*NAME).info()).queue)


async def test_the_next_one_leads_when_the_first_leaves(
    locks: Locks, rival: Locks
) -> None:
    leaving = anyio.Event()
    fences: list[int] = []

    async def first() -> None:
        async with rival.leader("scheduler") as leader:
            fences.append((await leader.elected()).fence)
            await leaving.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await wait_until(lambda: bool(fences), 20)
        async with locks.leader("scheduler") as second:
            await wait_until(lambda: _waits(locks), 20)
            assert not second.is_leader
            leaving.set()
            assert (await second.elected()).fence > fences[0]


async def test_names_are_apart(locks: Locks, rival: Locks) -> None:
    async with locks.leader("a") as first, rival.leader("b") as second:
        await first.elected()
        await second.elected()
        assert first.name == "a"
        assert repr(first) == f"<Leader 'a' leads, fence {first.fence}>"
    assert not first.is_leader
    assert repr(first) == "<Leader 'a' stands by>"


async def test_work_returns(locks: Locks, rival: Locks) -> None:
    async def work(held: Held) -> int:
        held.check()
        return held.fence

    assert await locks.leader("scheduler").lead(work) < await rival.leader(
        "scheduler"
    ).lead(work)
    assert await is_free(rival)


async def test_the_error_of_the_work_is_raised_and_hands_over(
    locks: Locks, rival: Locks
) -> None:
    async def work(_: Held) -> None:
        raise Mine

    with pytest.raises(Mine):
        await locks.leader("scheduler").lead(work)
    assert await is_free(rival)


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable(what="the payment's database"),
        LockLost(resource="order/42", fence=1),
        ExceptionGroup("", [LockLost(resource="order/42", fence=1)]),
    ],
    ids=["store", "lock", "group"],
)
async def test_an_error_of_another_store_or_lock_is_the_works_own(
    locks: Locks, error: Exception
) -> None:
    runs = 0

    async def work(_: Held) -> None:
        nonlocal runs
        runs += 1
        raise error

    with pytest.raises(type(error)) as caught:
        await locks.leader("scheduler").lead(work)
    assert caught.value is error
    assert runs == 1


async def sleeps(_: Held) -> None:
    await anyio.sleep_forever()


async def checks(held: Held) -> None:
    while True:
        held.check()
        await checkpoint()


async def checks_in_tasks(held: Held) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(checks, held)


async def shielded(held: Held) -> None:
    with anyio.CancelScope(shield=True):
        await checks(held)


@pytest.mark.parametrize("loses", [sleeps, checks, checks_in_tasks, shielded])
async def test_after_a_loss_it_leads_again(
    store: FaultyMemory, locks: Locks, loses: Callable[[Held], Awaitable[None]]
) -> None:
    fences: list[int] = []

    async def work(held: Held) -> str:
        fences.append(held.fence)
        if len(fences) < 3:
            store.lose(*NAME)
            await loses(held)
        return "done"

    assert await locks.leader("scheduler").lead(work) == "done"
    assert fences == sorted(set(fences))
    assert len(fences) == 3


async def test_a_work_that_has_returned_is_not_run_again(
    store: FaultyMemory, locks: Locks
) -> None:
    runs = 0

    async def work(_: Held) -> int:
        nonlocal runs
        runs += 1
        store.lose(*NAME)
        return runs

    assert await locks.leader("scheduler").lead(work) == 1


async def test_a_work_that_returns_in_an_outage_hands_over_after_it(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    async def work(_: Held) -> str:
        store.link.down = True
        return "done"

    assert await locks.leader("scheduler").lead(work) == "done"
    store.link.down = False
    await wait_until(lambda: is_free(rival), 20)


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r for r in caplog.records if r.name == "aiorwlock_remote.leader"]
    assert {one.levelno for one in found} <= {logging.WARNING}
    return [one.getMessage() for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("fate", [Fate.REFUSE, Fate.LOSE, Fate.DECLINE])
async def test_a_store_that_is_down_at_the_start(
    store: FaultyMemory, locks: Locks, caplog: pytest.LogCaptureFixture, fate: Fate
) -> None:
    """Refused, uncertain or declined: the candidate goes on, and logs one line."""
    locks._session.client.connect_timeout = 0.05  # for so long a queue repeats itself
    store.link.fate = lambda sent: fate if isinstance(sent, Acquire) else Fate.PASS
    async with locks.leader("scheduler") as leader:
        await wait_until(lambda: _attempts(store) > 4, 20)
        assert not leader.is_leader
        store.link.fate = lambda _: Fate.PASS
        with anyio.fail_after(20):
            await leader.elected()
    (line,) = log_lines(caplog)
    assert line.startswith("leader_waits_for_store resource=leader/scheduler error=")


async def _attempts_after(store: FaultyMemory, count: int) -> None:
    await wait_until(lambda: _attempts(store) > count, 20)


def _attempts(store: FaultyMemory) -> int:
    return sum(isinstance(sent, Acquire) for sent in store.link.sent)


@pytest.mark.slow
async def test_an_outage_that_outlasts_the_lease(
    store: FaultyMemory,
    rival: Locks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Deposed by its own clock before another can lead; then it leads again. Each of
    two outages has a line in the log.
    """
    seen: list[tuple[str, int | None]] = []

    def elected(leader: Leader) -> None:
        assert leader.is_leader
        seen.append(("elected", leader.fence))

    def deposed(leader: Leader) -> None:
        assert not leader.is_leader
        seen.append(("deposed", leader.fence))

    async with store.connect() as locks:
        leader = locks.leader(
            "scheduler", lease=0.4, on_elected=elected, on_deposed=deposed
        )
        async with leader:
            for outage in (1, 2):
                await leader.elected()
                with store.down():
                    async with rival.mutex(*NAME) as held:
                        assert not leader.is_leader
                        assert held.fence > max(fence or 0 for _, fence in seen)
                        await _attempts_after(store, _attempts(store) + 2)
                        assert len(log_lines(caplog)) == outage
            await leader.elected()
    assert [event for event, _ in seen] == ["elected", "deposed"] * 3
    fences = [fence for event, fence in seen if event == "elected"]
    assert fences == sorted(fences, key=lambda fence: fence or 0)
    assert len(set(fences)) == 3


@pytest.mark.slow
async def test_a_leader_again_after_the_outage_within_lease_and_a_second(
    store: FaultyMemory,
) -> None:
    """By the store's clock, from the end of the outage to the new grant."""
    lease = 0.5
    async with (
        store.connect() as locks,
        locks.leader("scheduler", lease=lease) as leader,
    ):
        await leader.elected()
        with store.down():
            await wait_until(lambda: not leader.is_leader, 20)
            await anyio.sleep(1)
            back = store._clock.wall()
        await leader.elected()
        (holder,) = (await leader.info()).holders
    assert holder.since.timestamp() - back <= lease + 1


async def test_a_leader_steps_down_once_its_lease_may_have_expired(
    locks: Locks, store: FaultyMemory
) -> None:
    """Though the event loop was blocked, so that nothing has reported the loss yet."""
    async with locks.leader("scheduler", lease=0.2) as leader:
        await leader.elected()
        store.link.renewals_fail = True
        while leader.is_leader:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop does not turn
        assert leader._held is not None
        assert leader.fence is None
        store.link.renewals_fail = False
        await leader.elected()


async def test_a_callback_that_fails_is_logged(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Leader) -> None:
        raise Mine

    leader = locks.leader("scheduler", on_elected=fails, on_deposed=fails)
    async with leader:
        await leader.elected()
    found = [record.getMessage() for record in caplog.records]
    assert found == ["on_elected_failed", "on_deposed_failed"]


async def test_the_body_keeps_its_own_error(locks: Locks, rival: Locks) -> None:
    with pytest.raises(Mine):
        async with locks.leader("scheduler") as leader:
            await leader.elected()
            raise Mine
    assert await is_free(rival)


async def test_the_body_is_cancelled_from_outside(locks: Locks, rival: Locks) -> None:
    with anyio.CancelScope() as outside:
        async with locks.leader("scheduler") as leader:
            await leader.elected()
            outside.cancel()
            await anyio.sleep_forever()
    assert outside.cancelled_caught
    assert await is_free(rival)


async def test_an_error_that_stays_ends_the_body(
    store: FaultyMemory, locks: Locks
) -> None:
    store.link.fate = lambda _: Fate.FORBID
    with pytest.raises(Unsupported, match="no right"):
        async with locks.leader("scheduler") as leader:
            with pytest.raises(Unsupported):
                await leader.elected()
            await anyio.sleep_forever()
    with pytest.raises(Unsupported):
        await locks.leader("scheduler").lead(sleeps)


async def test_closing_the_locks_ends_the_body(store: FaultyMemory) -> None:
    for leads in (True, False):
        async with store.connect_rival() as rival, store.connect() as locks:
            taken = None if leads else await rival.mutex(*NAME).acquire()
            with pytest.raises(Closed):
                async with locks.leader("scheduler") as leader:
                    if leads:
                        await leader.elected()
                    async with anyio.create_task_group() as group:
                        group.start_soon(locks.aclose)
                        await anyio.sleep_forever()
            assert not leader.is_leader
            assert taken is None or await taken.release()


async def test_a_leader_may_be_entered_again_but_not_twice(locks: Locks) -> None:
    leader = locks.leader("scheduler")
    for _ in range(2):
        async with leader:
            await leader.elected()
            with pytest.raises(ConfigurationError, match="is entered already"):
                await leader.lead(sleeps)
        with pytest.raises(NotOwner):
            await leader.elected()

    async def work(held: Held) -> bool:
        return leader.is_leader and leader.fence == held.fence

    assert await leader.lead(work)
    with pytest.raises(NotOwner):
        await leader.elected()


async def test_another_task_waits_for_a_candidate_that_leads(locks: Locks) -> None:
    leader = locks.leader("scheduler")
    fences: list[int] = []

    async def wait() -> None:
        fences.append((await leader.elected()).fence)

    async def work(held: Held) -> int:
        await wait_until(lambda: bool(fences), 20)
        return held.fence

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()  # it waits before there is a candidate
        fence = await leader.lead(work)
    assert fences == [fence]


async def test_unsupported_uses_are_refused(locks: Locks) -> None:
    async def coroutine(_: Leader) -> None: ...

    with pytest.raises(ConfigurationError, match="would not be awaited"):
        locks.leader("scheduler", on_elected=coroutine)
    with pytest.raises(ConfigurationError, match="cannot be called"):
        locks.leader("scheduler", on_deposed="stop")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_deposed"):
        locks.leader("scheduler", on_lost="flag")
    with pytest.raises(ConfigurationError, match="a leader has a lease"):
        locks.leader("scheduler", lease=None)
    with pytest.raises(ConfigurationError, match="empty name"):
        locks.leader("")
    with pytest.raises(ConfigurationError, match="unknown option 'ttl'"):
        locks.leader("scheduler", ttl=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
async def test_cancelled_at_every_point(
    locks: Locks, rival: Locks, *, late: bool, taken: bool
) -> None:
    """No grant and no queue entry of a cancelled candidate remain."""

    async def work(held: Held) -> None:
        await checkpoint()
        held.check()

    async def history() -> None:
        await locks.leader("scheduler").lead(work)
        async with locks.leader("scheduler") as leader:
            await leader.elected()

    for k in range(1, 200):
        held = await rival.mutex(*NAME).acquire() if taken else None
        async with anyio.create_task_group() as group:
            if held is not None:
                group.start_soon(_release_soon, held)
            outcome = await by_scope(history(), k, late=late)
        assert outcome.error is None
        mutex = rival.mutex(*NAME)
        await (await mutex.acquire(timeout=20)).release()
        assert not (await mutex.info()).queue
        if not outcome.cancelled:
            break
    else:
        pytest.fail("it has more suspensions than that")


async def _release_soon(held: Held) -> None:
    for _ in range(3):
        await checkpoint()
    await held.release()


async def test_pauses_grow_and_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the attempt after an outage comes half a second after its end at most."""
    pauses: list[float] = []

    async def record(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("aiorwlock_remote.recipes.outage.anyio.sleep", record)
    outage = Outage(logging.getLogger("test"), "away", "leader/scheduler")
    for _ in range(2000):
        await outage.pause(BackendUnavailable())
    assert max(pauses[:2]) <= 0.1
    assert 0.45 < max(pauses) <= MAX_PAUSE == 0.5
    assert min(pauses[5:]) >= 0.1
    assert len(set(pauses)) > 1900  # jitter


async def test_one_line_is_logged_of_each_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With its first error; the next outage has a line of its own."""

    async def pass_at_once(_: float) -> None:
        await checkpoint()

    monkeypatch.setattr("aiorwlock_remote.recipes.outage.anyio.sleep", pass_at_once)
    outage = Outage(logging.getLogger("test"), "away", "leader/scheduler")
    for errors in (("refused", "silent", "silent"), ("broken", "refused")):
        for what in errors:
            await outage.pause(BackendUnavailable(what=what))
        outage.over()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "away resource=leader/scheduler error=refused",
        "away resource=leader/scheduler error=broken",
    ]
