"""One swap whose request or answer was lost, or that the store gave up."""

from __future__ import annotations

import pytest

from aiorwlock_remote.cas import CasContention
from aiorwlock_remote.cas.stepper import MAX_CONTENTION_RETRIES
from aiorwlock_remote.core.commands import (
    Acquire,
    Granted,
    Release,
    Renew,
    Waiting,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from tests.cas.lossy_clients import CLIENT_ID, LEASE, NOTHING, Party, SharedRow, write


def test_a_lost_swap_from_a_version_is_burnt_before_an_answer() -> None:
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["late"]
    lost = party.begin(Renew((("t1", 9 * LEASE),)))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    assert party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("other",))) == Withdrawn(())
    before = row.state
    for ghost in row.late:
        assert not ghost()
    assert row.state == before


def test_once_it_is_burnt_each_step_is_one_request_again() -> None:
    party = Party(SharedRow())
    party.do(write("t1"))
    party.cas.fates = ["late"]
    lost = party.begin(Renew((("t1", 9 * LEASE),)))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    party.do(Renew((("t1", 9 * LEASE),)))
    party.asked.clear()
    assert party.do(Release("t1")).held
    assert party.asked == ["swap"]


@pytest.mark.parametrize("carried", [False, True])
def test_a_grant_that_seemed_lost_is_as_old_as_its_request(carried: bool) -> None:
    row = SharedRow()
    party = Party(row)
    command: Acquire | Release = write("t2")
    if carried:
        party.do(write("t1"))
        command = Release("t1", then=(write("t2"),))
    party.cas.fates = ["done"]
    sent = row.now
    lost = party.begin(command)
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    row.now += LEASE // 2
    party.cas.slow = LEASE // 2  # the store's frame does not know of that time
    granted = party.do(write("t2"))
    assert granted.grants[0].since == sent
    assert granted.now - granted.grants[0].since == LEASE // 2
    party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("t2",)))
    fresh = party.do(write("t3"))
    assert fresh.now == fresh.grants[0].since


@pytest.mark.parametrize("fate", ["late", "never"])
def test_a_grant_is_no_older_for_a_request_that_came_to_nothing(fate: str) -> None:
    """Who waited for longer than its lease would lose its turn for it."""
    row = SharedRow()
    one, two = Party(row), Party(row)
    one.do(write("t1"))
    waiting = write("t2", client_id=CLIENT_ID, may_queue=True, entry_ttl=99 * LEASE)
    assert isinstance(two.do(waiting), Waiting)
    two.cas.fates = [fate]
    lost = two.begin(replace(waiting, waiting=2))
    two.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    row.now += LEASE // 2
    assert isinstance(two.do(waiting), Waiting)
    assert one.do(Release("t1")).held
    row.now += 2 * LEASE
    granted = two.do(waiting)
    assert granted.now == granted.grants[0].since == row.now


@pytest.mark.parametrize("fate", ["gave up", "gave up, done", "gave up, late"])
def test_an_abandoned_swap_is_repeated(fate: str) -> None:
    row = SharedRow()
    party = Party(row)
    party.cas.fates = [fate]
    granted = party.do(write("t1"))
    assert row.state.record is not None
    assert row.state.record.grants == granted.grants
    assert party.asked[:2] == ["swap", "load"]  # what became of it is seen first
    row.now += 10
    party.cas.fates = [fate]
    (renewed,) = party.do(Renew((("t1", LEASE),))).outcomes
    assert renewed.fence == granted.grants[0].fence
    assert not any(ghost() for ghost in row.late)
    assert party.do(Release("t1")).held


def test_a_swap_refused_too_often_is_reported() -> None:
    party = Party(SharedRow())
    party.cas.fates = ["gave up"] * MAX_CONTENTION_RETRIES
    pending = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(pending.error, CasContention)
    assert not party.cas.fates
    assert isinstance(party.do(write("t1")), Granted)


@pytest.mark.parametrize("after", ["swap", "load"])
def test_what_may_be_done_is_never_said_to_be_undone(after: str) -> None:
    """Its caller withdraws nothing: the grant would be nobody's."""
    row = SharedRow()
    party = Party(row)
    party.cas.fates = ["gave up, done" if after == "load" else "gave up, late"]
    party.cas.fates += ["gave up, undone"] * MAX_CONTENTION_RETRIES
    party.cas.loads_fail = after == "load"
    pending = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(pending.error, BackendUnavailable)
    assert not pending.error.nothing_done


def test_a_release_that_may_be_done_is_not_repeated() -> None:
    """Its second answer would be: not held."""
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["gave up, done"]
    pending = party.begin(Release("t1"))
    party.cas.run()
    assert isinstance(pending.error, BackendUnavailable)
    assert row.state == NOTHING


def test_a_release_that_was_certainly_not_done_is_repeated() -> None:
    row = SharedRow()
    party = Party(row)
    party.do(write("t1"))
    party.cas.fates = ["gave up, undone"] * (MAX_CONTENTION_RETRIES - 1)
    assert party.do(Release("t1")).held
    assert row.state == NOTHING


def test_a_lost_swap_from_nothing_is_burnt_too() -> None:
    row = SharedRow()
    party = Party(row)
    party.cas.fates = ["late"]
    lost = party.begin(write("t1"))
    party.cas.run()
    assert isinstance(lost.error, BackendUnavailable)
    assert row.late
    assert party.do(Withdraw(CLIENT_ID, Mode.WRITE, ("t1",))) == Withdrawn(())
    assert not any(ghost() for ghost in row.late)
    assert isinstance(party.do(write("t2")), Granted)
