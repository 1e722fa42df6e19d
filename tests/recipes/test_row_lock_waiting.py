"""What a process asks of a row, and when, by a database that is acted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import BackendUnavailable, Closed
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row import (
    UNLOCK,
    WRITE_LOCK,
    Plan,
    RowState,
    RowStep,
    RowTable,
)
from aiorwlock_remote.core.row_dialects import SQLITE
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.recipes.row_lock import manager, requests
from aiorwlock_remote.recipes.row_lock.manager import (
    RowLease,
    RowLockManager,
    RowWaiters,
)
from aiorwlock_remote.recipes.row_lock.target import (
    PublishedStrategy,
    RowAttempt,
    RowIdentity,
    RowOutcome,
    RowSql,
    RowTarget,
)
from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.fixed_clock import StandingClock

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("nothing is sent")]

TAKEN = RowOutcome(RowStep(0, (WRITE_LOCK, 0, "")), held=False)
FASTER = RowOutcome(RowStep(0, (UNLOCK, 0, "")), held=False, again=True)
HELD = RowOutcome(RowStep(1), held=True)
AWAY = BackendUnavailable(what="not sent", nothing_done=True)


class Acted:
    """A database whose next answers are given; after those, the row is ours.

    ``took``: seconds that each takes by the clock.
    """

    def __init__(self) -> None:
        self.clock = StandingClock()
        self.host = current_event_loop(self.clock)
        self.answers: list[RowOutcome | BackendUnavailable | Pending[Any]] = []
        self.took = 0.0
        self.sent = 0
        self.freed: list[RowIdentity] = []
        self.closed = False
        self.waiting = RowLockManager[Any](self, self.host, self.check)
        self.requests = self.waiting._requests
        self.requests._on_freed = self.freed.append

    def check(self) -> None:
        if self.closed:
            raise Closed

    def carry(self, _: Plan[Any, Any]) -> Pending[Any]:
        self.sent += 1
        self.clock.seconds += self.took
        answer = self.answers.pop(0) if self.answers else HELD
        if isinstance(answer, Pending):
            return answer
        pending: Pending[Any] = Pending()
        if isinstance(answer, RowOutcome):
            pending.set_result(answer)
        else:
            pending.set_exception(answer)
        return pending

    async def obtain(
        self, row: RowTarget[Any], until: float | None = None, *, wait: bool = False
    ) -> RowLease[Any] | RowState:
        return await self.waiting._obtain(attempt(row, until), wait=wait)


def row(lease: float | None = None) -> RowTarget[Any]:
    sql = RowSql(RowTable("invoices"), 1, SQLITE)
    return RowTarget.of(sql, "1", sql, lease)


def attempt(row: RowTarget[Any], until: float | None = None) -> RowAttempt[Any]:
    return RowAttempt(row, Mode.WRITE, "test", "ticket", until)


@pytest.fixture
async def acted(monkeypatch: pytest.MonkeyPatch) -> Acted:
    """It is asked without pauses."""
    monkeypatch.setattr(manager, "back_off", lambda *_, **__: 0.0)
    monkeypatch.setattr(requests, "back_off", lambda *_: 0.0)
    return Acted()


async def a_few_steps() -> None:
    with anyio.CancelScope(shield=True):
        for _ in range(20):
            await checkpoint()


async def test_all_who_look_share_one_watch() -> None:
    """It ends with the last of them."""
    told: list[str] = []

    def watch(_: Callable[[], object]) -> Callable[[], object]:
        told.append("watched")
        return lambda: told.append("over")

    crowd = RowWaiters()
    with crowd.polling(watch):
        with crowd.polling(watch):
            pass
        assert told == ["watched"]
    assert told == ["watched", "over"]
    with crowd.polling(watch):
        assert told == ["watched", "over", "watched"]


async def test_looks_are_more_and_more_seldom_until_somebody_leaves(
    acted: Acted, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def pause(look: int, *_: float, **__: float) -> float:
        looks.append(look)
        return 0.0 if look < 3 else math.inf

    monkeypatch.setattr(manager, "back_off", pause)
    monkeypatch.setattr(manager, "MAX_POLL_INTERVAL", math.inf)

    async def waits() -> bool:
        return looks[-1:] == [3]

    acted.answers = [TAKEN] * 9  # the first one before it waits
    async with anyio.create_task_group() as group:

        async def obtain() -> None:
            assert isinstance(await acted.obtain(row(), wait=True), RowLease)

        group.start_soon(obtain)
        await wait_until(waits, 10)
        looks.append(-1)
        acted.waiting.wake(row().identity)
        await wait_until(waits, 10)
        acted.waiting.wake()
    assert looks == [0, 1, 2, 3, -1, 0, 1, 2, 3]


async def test_who_cannot_be_told_anything_is_told_so_after_a_while(
    acted: Acted,
) -> None:
    acted.answers, acted.took = [AWAY] * 9, 2.0
    with pytest.raises(BackendUnavailable):
        await acted.obtain(row())
    assert acted.sent == 3


async def test_or_when_its_time_is_over(acted: Acted) -> None:
    acted.answers, acted.took = [AWAY] * 9, 2.0
    with pytest.raises(BackendUnavailable):
        await acted.obtain(row(), acted.clock.now() + 2.0)
    assert acted.sent == 1


async def test_once_closed_nothing_is_tried_again(acted: Acted) -> None:
    acted.answers, acted.closed = [AWAY] * 9, True
    with pytest.raises(Closed):
        await acted.obtain(row())
    assert acted.sent == 1


async def test_closed_and_cancelled_it_is_given_back_once(acted: Acted) -> None:
    answer: Pending[Any] = Pending()
    acted.answers = [answer]
    async with anyio.create_task_group() as group:
        group.start_soon(acted.obtain, row())
        await a_few_steps()
        acted.requests.close()
        group.cancel_scope.cancel()
        await a_few_steps()
        answer.set_result(HELD)
    assert acted.sent == 2
    assert acted.freed == [row().identity]


async def test_a_try_is_made_some_times_while_others_are_faster(acted: Acted) -> None:
    acted.answers = [FASTER] * 9
    assert isinstance(await acted.obtain(row()), RowState)
    assert acted.sent == manager.IMMEDIATE_ATTEMPTS


async def test_a_lease_counts_from_before_it_was_asked_for(acted: Acted) -> None:
    acted.took, began = 4.0, acted.clock.now()
    held = await acted.obtain(row(lease=60.0))
    assert isinstance(held, RowLease)
    assert began + 50 < held.deadline <= began + 60.0


async def test_one_that_comes_when_it_is_over_is_given_back(acted: Acted) -> None:
    acted.took = 60.0
    with pytest.raises(BackendUnavailable) as told:
        await acted.obtain(row(lease=60.0))
    assert told.value.nothing_done
    assert acted.sent == 2
    assert acted.freed == [row().identity]


async def test_what_a_table_takes_is_checked_until_one_was_locked(
    acted: Acted, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []

    def take(_: object, __: RowAttempt[Any], *, check: bool) -> None:
        checked.append(check)

    monkeypatch.setattr(PublishedStrategy, "take", take)
    acted.answers = [TAKEN]
    for _ in range(3):
        await acted.obtain(row())
    assert checked == [True, True, False]


async def test_closing_sends_at_once_what_was_to_be_sent_again(acted: Acted) -> None:
    """And not another time."""
    acted.answers = [AWAY, AWAY]
    told = acted.requests.give(attempt(row()), "")
    acted.requests.close()
    assert acted.sent == 2
    assert told.error is AWAY
    await a_few_steps()
    assert acted.sent == 2
    await acted.requests.wait_closed()


async def test_a_release_is_sent_again_for_a_while(acted: Acted) -> None:
    acted.answers, acted.took = [AWAY] * 3, 2.0
    told = acted.requests.give(attempt(row()), "")
    with pytest.raises(BackendUnavailable):
        await told
    assert acted.sent == 3
    await acted.requests.wait_closed()


async def test_whoever_gives_back_while_others_change_it_is_told_when_it_is_done(
    acted: Acted,
) -> None:
    acted.answers = [FASTER, HELD]
    assert await acted.requests.give(attempt(row()), "") is HELD
    assert acted.sent == 2
    assert acted.freed == [row().identity]
