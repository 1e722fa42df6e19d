"""Random histories of a semaphore, checked at each step; broken rules must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core import mutex_record, permits, transition
from aiorwlock_remote.core.commands import Acquire, Granted
from aiorwlock_remote.core.doorman import Doorman, QueueEntry, StepContext
from tests.core.machine import STORIES, Event
from tests.core.permit_machine import LIMITS, PERMIT, PermitMachine
from tests.core.progress import Ending
from tests.core.world import SECOND
from tests.examples_of_histories import many

LEAST_STEPS = 2_500


def test_every_step_of_every_history_is_just() -> None:
    """Limits that agree and that differ, stores that purge and that keep."""
    steps = 0

    @settings(max_examples=many(80))
    @given(st.sampled_from(LIMITS), st.booleans(), STORIES)
    def tell(limits: tuple[int, ...], purges: bool, story: list[Event]) -> None:
        nonlocal steps
        machine = PermitMachine(limits, purges=purges)
        machine.run(story)
        steps += machine.steps

    tell()
    assert steps >= LEAST_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
@settings(max_examples=many(25))
@given(st.sampled_from(LIMITS), STORIES)
def test_every_waiter_gets_a_permit(
    deaf: bool, limits: tuple[int, ...], story: list[Event]
) -> None:
    """Also if each wake-up is lost, and while another client comes back for ever."""
    machine = PermitMachine(limits)
    machine.run(story)
    waiters = len(machine.waiting)
    ending = Ending(machine, deaf=deaf, churn=(("dan", PERMIT),))
    ending.play(within=(10 + 3 * waiters) * SECOND)


# ------------------------------------------------------------------- negative controls

free, take, offered = (
    permits.free_permits,
    permits.take_permits,
    permits.offer_permits,
)
foreign = mutex_record.foreign_seat


def own_limit(doorman: Doorman, entry: QueueEntry, now: int) -> int:
    """The limits of others do not count."""
    del doorman, now
    return entry.limit


def nobody_is_before(doorman: Doorman, entry: QueueEntry, now: int) -> list[QueueEntry]:
    """What earlier clients wait for is free."""
    del doorman, entry, now
    return []


def late_ones_count(doorman: Doorman, entry: QueueEntry, now: int) -> list[QueueEntry]:
    """An entry whose client is gone reserves permits for as long as it lives."""
    del now
    return [p for p in doorman.queue if p.number < entry.number]


def one_at_a_time(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    """A request takes one permit only."""
    first, *rest = cmd.claims
    short = replace(cmd, claims=(first,), more=cmd.more + len(rest))
    return take(doorman, short, entry, at)


def served_stays_first(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    """The tasks that are left keep the entry of those that were served."""
    taken = take(doorman, cmd, entry, at)
    if (
        taken is None
        or not taken[1].placed
        or doorman.entry(cmd.client_id, PERMIT) is None
    ):
        return taken
    after, granted = taken
    *others, last = after.queue
    stays = replace(last, number=entry.number)
    queue = sorted((*others, stays), key=lambda p: p.number)
    return replace(after, queue=tuple(queue)), granted


def foreign_is_ignored(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    """A permit is granted beside another program's mutex record."""
    return take(doorman, cmd, entry, replace(at, foreign=None))


def one_fence_for_all(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    """All permits of a request share their fence."""
    taken = take(doorman, cmd, entry, at)
    if taken is None:
        return None
    after, granted = taken
    new = {c.ticket for c in cmd.claims if doorman.grant(c.ticket) is None}
    grants = tuple(
        replace(g, fence=after.last) if g.ticket in new else g for g in after.grants
    )
    shared = tuple(g for g in grants if g in granted.grants or g.ticket in new)
    return replace(after, grants=grants), replace(granted, grants=shared)


def nobody_is_called(doorman: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    """Offers are made without a wake-up."""
    return offered(doorman, now)[0], ()


def the_first_alone(doorman: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    """One client is called, however many permits are free."""
    after, woken = offered(doorman, now)
    calls = [p for p in after.queue if p.client_id in woken[1:]]
    queue = tuple(
        replace(p, claim_until=None) if p in calls else p for p in after.queue
    )
    return replace(after, queue=queue), woken[:1]


BROKEN: dict[str, tuple[tuple[object, str, Callable[..., object]], ...]] = {
    "the own limit alone counts": ((permits, "limit_for", own_limit),),
    "earlier clients are overtaken": ((permits, "_before", nobody_is_before),),
    "late entries count": ((permits, "_before", late_ones_count),),
    "foreign records are ignored": ((transition, "take_permits", foreign_is_ignored),),
    "our own word is foreign": (
        (
            transition,
            "foreign_seat",
            lambda lock, seat, **_: foreign(lock, seat, semaphore=False),
        ),
    ),
    "one permit a request": ((transition, "take_permits", one_at_a_time),),
    "who was served stays first": ((transition, "take_permits", served_stays_first),),
    "one fence for all": ((transition, "take_permits", one_fence_for_all),),
    "nobody is called": ((transition, "offer_permits", nobody_is_called),),
    "the first alone is called": ((transition, "offer_permits", the_first_alone),),
    "a lock delay is ignored": (
        (
            permits,
            "free_permits",
            lambda lock, entry, now: free(replace(lock, barred_until=0), entry, now),
        ),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_rule_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants, which use the sound rules, find the fault."""

    @settings(max_examples=60, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.sampled_from(LIMITS), STORIES)
    def broken(limits: tuple[int, ...], story: list[Event]) -> None:
        PermitMachine(limits).run(story)

    for owner, name, fault_of in BROKEN[fault]:
        monkeypatch.setattr(owner, name, fault_of)
    with pytest.raises(AssertionError):
        broken()
