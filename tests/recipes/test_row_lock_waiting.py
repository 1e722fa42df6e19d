"""What a process asks of a row, and when, at a fake database."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import BackendUnavailable, LockLost, LockTimeout, connect
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Released
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.row import UNLOCK, WRITE_LOCK, Plan, RowStep, RowTable
from aiorwlock_remote.core.row_dialects import SQLITE
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.integrations._row_locks import PlanStore
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.recipes.row_lock import acquirer
from aiorwlock_remote.recipes.row_lock.acquirer import RowAcquirer, RowWaiters
from aiorwlock_remote.recipes.row_lock.target import (
    PublishedStrategy,
    RowAttempt,
    RowOutcome,
    RowSql,
    RowTarget,
)
from aiorwlock_remote.runtime import cleanup
from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseTerms
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.fixed_clock import StandingClock
from tests.locks.test_observers import Recorder
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import PATIENCE, never_look_again

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing is sent"),
]


TAKEN = RowOutcome(RowStep(0, (WRITE_LOCK, 0, "")), held=False)
FASTER = RowOutcome(RowStep(0, (UNLOCK, 0, "")), held=False, again=True)
HELD = RowOutcome(RowStep(1), held=True)
AWAY = BackendUnavailable(what="not sent", nothing_done=True)


class FakeDatabase:
    """A database whose next answers are given; after those, the row is ours.

    ``took``: seconds that the next answers take by the clock, then each of the others.
    """

    def __init__(self) -> None:
        self.clock = StandingClock()
        loop = current_event_loop(self.clock)
        self.answers: list[RowOutcome | Grant | BackendUnavailable | Pending[Any]] = []
        self.took = [0.0]
        self.sent = 0
        self.freed: list[object] = []
        self.client = StoreClient(loop, StoreSettings("test"))
        self.client.use(PlanStore(self, loop))
        self.acquirer = RowAcquirer[Any](self.client, self)
        self.acquirer._requests._on_freed = self.freed.append

    def carry(self, _: Plan[Any, Any]) -> Pending[Any]:
        self.sent += 1
        self.clock.seconds += self.took.pop(0) if self.took[1:] else self.took[0]
        answer = self.answers.pop(0) if self.answers else HELD
        if isinstance(answer, Pending):
            return answer
        pending: Pending[Any] = Pending()
        if isinstance(answer, RowOutcome | Grant):
            pending.set_result(answer)
        else:
            pending.set_exception(answer)
        return pending

    async def obtain(self, row: RowTarget[Any], timeout: float | None = None) -> Lease:
        terms = LeaseTerms(row.strategy.lease)
        request = AcquireRequest(row, Mode.WRITE, Policy.READER, terms, timeout)
        return await self.acquirer.acquire(request)


def row(lease: float | None = None) -> RowTarget[Any]:
    sql = RowSql(RowTable("invoices"), 1, SQLITE)
    return RowTarget.of(sql, "1", sql, lease)


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeDatabase]:
    """It is asked without pauses."""
    monkeypatch.setattr(acquirer, "back_off", lambda *_, **__: 0.0)
    monkeypatch.setattr(cleanup, "back_off", lambda *_: 0.0)
    fake = FakeDatabase()
    yield fake
    fake.client.keeper.close()


async def a_few_steps() -> None:
    with anyio.CancelScope(shield=True):
        for _ in range(20):
            await checkpoint()


async def test_all_who_poll_share_one_watch() -> None:
    """It ends with the last of them."""
    calls: list[str] = []

    def watch(_: Callable[[], object]) -> Callable[[], object]:
        calls.append("watched")
        return lambda: calls.append("over")

    waiters = RowWaiters()
    with waiters.polling(watch):
        with waiters.polling(watch):
            pass
        assert calls == ["watched"]
    assert calls == ["watched", "over"]
    with waiters.polling(watch):
        assert calls == ["watched", "over", "watched"]


async def test_polls_are_rarer_and_rarer_until_a_wake_up(
    fake: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []

    def pause(poll: int, *_: float, **__: float) -> float:
        polls.append(poll)
        return 0.0 if poll < 3 else math.inf

    monkeypatch.setattr(acquirer, "back_off", pause)
    monkeypatch.setattr(acquirer, "MAX_POLL_INTERVAL", math.inf)

    async def waits() -> bool:
        return polls[-1:] == [3]

    fake.answers = [TAKEN] * 9  # the first one before it waits
    async with anyio.create_task_group() as group:
        group.start_soon(fake.obtain, row())
        await wait_until(waits, 10)
        polls.append(-1)
        fake.acquirer.wake(row())
        await wait_until(waits, 10)
        fake.acquirer.wake()
    assert polls == [0, 1, 2, 3, -1, 0, 1, 2, 3]
    assert fake.client.wakeups["message"] == 2
    assert fake.client.wakeups["poll"] == 6


async def test_a_database_that_is_away_is_reported_after_a_while(
    fake: FakeDatabase,
) -> None:
    fake.answers, fake.took = [AWAY] * 9, [2.0]
    with pytest.raises(BackendUnavailable):
        await fake.obtain(row())
    assert fake.sent == 3


async def test_or_when_the_timeout_is_over(fake: FakeDatabase) -> None:
    fake.answers, fake.took = [AWAY] * 9, [2.0]
    with pytest.raises(BackendUnavailable):
        await fake.obtain(row(), timeout=2.0)
    assert fake.sent == 1


async def test_closed_and_cancelled_it_is_given_back_once(fake: FakeDatabase) -> None:
    answer: Pending[Any] = Pending()
    fake.answers = [answer]
    async with anyio.create_task_group() as group:
        group.start_soon(fake.obtain, row())
        await a_few_steps()
        fake.client.in_flight.close()
        group.cancel_scope.cancel()
        await a_few_steps()
        answer.set_result(HELD)
    assert fake.sent == 2
    assert fake.freed == [row()]


@pytest.mark.parametrize("lease", [None, 60.0])
@pytest.mark.parametrize("nothing_done", [False, True])
async def test_cancelled_before_the_reply_is_lost(
    fake: FakeDatabase,
    lease: float | None,
    caplog: pytest.LogCaptureFixture,
    *,
    nothing_done: bool,
) -> None:
    """Without a ticket a release might be that of another holder's lock, so that only
    the log tells that the row may stay locked.
    """
    answer: Pending[Any] = Pending()
    fake.answers = [answer]
    async with anyio.create_task_group() as group:
        group.start_soon(fake.obtain, row(lease))
        await a_few_steps()
        group.cancel_scope.cancel()
        await a_few_steps()
        lost = BackendUnavailable(what="no answer", nothing_done=nothing_done)
        answer.set_exception(lost)
    released = lease is not None and not nothing_done
    assert fake.sent == 1 + released
    assert fake.freed == [row(lease)] * released
    doubtful = lease is None and not nothing_done
    assert ("row_lock_uncertain" in events(caplog)) is doubtful


async def test_some_attempts_are_made_while_others_are_faster(
    fake: FakeDatabase,
) -> None:
    fake.answers = [FASTER] * 9
    with pytest.raises(LockTimeout):
        await fake.obtain(row(), timeout=0)
    assert fake.sent == acquirer.IMMEDIATE_ATTEMPTS


async def test_a_lease_counts_from_before_it_was_asked_for(fake: FakeDatabase) -> None:
    fake.took, began = [4.0], fake.clock.now()
    lease = await fake.obtain(row(lease=60.0))
    assert lease.deadline is not None
    assert began + 50 < lease.deadline <= began + 60.0


async def test_an_extension_counts_from_before_it_was_asked_for(
    fake: FakeDatabase,
) -> None:
    lease = await fake.obtain(row(lease=60.0))
    assert lease.deadline is not None
    before, asked_at = lease.deadline, fake.clock.now() + 30.0
    fake.clock.seconds = asked_at
    fake.took = [4.0]
    fake.answers = [Grant(lease.ticket, Mode.WRITE, 1, 0, None)]
    await fake.acquirer.extend(lease)
    assert fake.clock.now() == asked_at + 4.0
    assert lease.deadline == pytest.approx(before + 30.0)


async def test_a_grant_that_comes_when_it_is_over_is_given_back(
    fake: FakeDatabase,
) -> None:
    fake.took = [60.0, 0.0]
    lease = await fake.obtain(row(lease=60.0))
    assert lease.left is not None
    assert lease.left > 0
    assert fake.sent == 3
    assert fake.freed == [row()]


async def test_a_table_is_checked_until_one_of_its_rows_was_locked(
    fake: FakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []

    def take(_: object, __: RowAttempt[Any], *, check: bool) -> None:
        checked.append(check)

    monkeypatch.setattr(PublishedStrategy, "take", take)
    fake.answers = [TAKEN]
    for _ in range(3):
        with suppress(LockTimeout):
            await fake.obtain(row(), timeout=0)
    assert checked == [True, True, False]


async def test_a_release_while_others_change_the_row_is_repeated(
    fake: FakeDatabase,
) -> None:
    lease = await fake.obtain(row())
    fake.answers = [FASTER, HELD]
    reply = await fake.client.cleanup.outcome(fake.client.release(lease))
    assert isinstance(reply, Released)
    assert reply.held
    assert fake.sent == 3
    assert fake.freed == [row()]


# ------------------------------------------------------------------------------
# What a row lock writes to the log at DEBUG: why a waiter was late, or a lock lost.


LOGGERS = ("aiorwlock_remote.row_lock", "aiorwlock_remote.acquire")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text.partition(" ")[0] for text in caplog.messages]


async def test_a_waiter(
    sqlite: LocksSite,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_look_again(monkeypatch)
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, name)
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        held = await lock.write()
        assert events(caplog) == ["request_sent", "granted"]
        caplog.clear()

        async def wait() -> None:
            async with lock.write(timeout=PATIENCE):
                pass

        async def is_waiting() -> bool:
            return events(caplog).count("refused") == 2

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await wait_until(is_waiting, PATIENCE)
            figures = locks.statistics()
            assert (figures.waiting["write"], figures.held["write"]) == (1, 1)
            await held.release()
        assert locks.statistics().wakeups["message"] == 1
    seen = events(caplog)
    assert seen[:3] == ["request_sent", "refused", "queued"]
    assert seen[-1] == "granted"
    assert any("cause=message" in text for text in caplog.messages)


async def test_observers_are_called(sqlite: LocksSite) -> None:
    recorder = Recorder()
    async with connect(sqlite.url, observers=[recorder]) as locks:
        async with locks.row_lock("invoices", 1, lease=30).write():
            asked, obtained = recorder.so_far()
            assert asked == ("asked", "invoices/1", "write")
            assert obtained == ("obtained", 0, "invoices/1")
        assert recorder.so_far() == [("ended", 0, "released")]


async def test_a_loss(sqlite: LocksSite, caplog: pytest.LogCaptureFixture) -> None:
    """The holder's ticket is a secret, and not logged."""
    caplog.set_level(logging.DEBUG, "aiorwlock_remote")

    async def is_logged() -> bool:
        return "lost" in events(caplog)

    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1, lease=30)
        held = await lock.write()
        (grant,) = await lock.grants()
        sqlite.plain.step("WUnlock")
        with pytest.raises(LockLost):
            await held.extend()
        await wait_until(is_logged, PATIENCE)
    (lost,) = (text for text in caplog.messages if text.startswith("lost "))
    assert f"resource=invoices/1 why=forced fence={grant.fence}" in lost
    assert not any(grant.ticket in text for text in caplog.messages)
