"""Negative controls: a lock broken on purpose must not get past the machine.

Each control breaks one rule. The same histories pass with nothing broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core import (
    admission,
    doorman,
    fast_path,
    moves,
    mutex_record,
    transition,
)
from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Conflict,
    ForceRelease,
    Granted,
    NotHeld,
    Refused,
    Release,
    Renew,
    Upgrade,
    Withdraw,
)
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
    StepContext,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import Step
from tests.core import step_invariants
from tests.core.machine import POLICIES, STORIES, Event, Machine
from tests.core.progress import Ending
from tests.core.world import SECOND, Transition

FEW_TURNS = 3
sound = transition.transition
CHURN = (("dan", Mode.READ), ("eve", Mode.READ))


@pytest.fixture(autouse=True, scope="module")
def _few_turns() -> Iterator[None]:
    """So few that the histories are long enough to exceed them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (transition, admission, fast_path, step_invariants):
            patch.setattr(module, "MAX_LOCAL_TURNS", FEW_TURNS)
        yield


def tell(law: Transition = sound, *, to_the_end: bool = False) -> None:
    """Run the same histories each time, without looking for the shortest that fails."""

    @settings(
        max_examples=150, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(POLICIES, st.booleans(), STORIES)
    def stories(policies: list[Policy], purges: bool, story: list[Event]) -> None:
        fair = [Policy.FAIR] if to_the_end else policies
        machine = Machine(fair, transition=law, purges=purges)
        machine.run(story)
        if to_the_end:
            within = (10 + 3 * len(machine.waiting)) * SECOND
            Ending(machine, churn=CHURN).play(within)

    stories()


@pytest.mark.parametrize("to_the_end", [False, True])
def test_nothing_broken_passes(to_the_end: bool) -> None:
    """The meta-check: the planted faults make the controls fail, not the histories."""
    tell(to_the_end=to_the_end)


# ----------------------------------------------------------- broken from outside


def other_mode_is_granted(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """A live ticket is granted in another mode."""
    step = sound(record, at, command, now, floor)
    if isinstance(command, Acquire) and command.claims:
        live = step.record.grant(command.claims[0].ticket)
        if live is not None:
            return replace(step, reply=Granted((live,), now))
    return step


def release_frees_anybody(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """A release does not compare the ticket."""
    if isinstance(command, Release) and record and record.grants:
        command = replace(command, ticket=record.grants[0].ticket)
    return sound(record, at, command, now, floor)


def force_ignores_the_fence(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """A forced release breaks a later grant."""
    if isinstance(command, ForceRelease) and record and record.grants:
        command = replace(command, fence=record.last)
    return sound(record, at, command, now, floor)


def withdraw_forgets_the_place(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """A withdrawn queue entry stays."""
    if isinstance(command, Withdraw):
        command = replace(command, keep=True)
    return sound(record, at, command, now, floor)


def renew_resurrects(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """A renewal that comes too late is accepted."""
    if isinstance(command, Renew) and record and record.grants:
        alive = tuple(replace(g, expires=now + SECOND) for g in record.grants)
        record = replace(record, grants=alive)
    return sound(record, at, command, now, floor)


def wakes_are_lost(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """Only a release wakes clients."""
    step = sound(record, at, command, now, floor)
    return step if isinstance(command, Release) else replace(step, wakes=())


def adopting_is_renewing(
    record: Doorman | None,
    at: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
) -> Step:
    """Any number of clients with a ticket get its grant."""
    if not isinstance(command, Adopt):
        return sound(record, at, command, now, floor)
    renewal = Renew(((command.ticket, command.claim.lease),))
    step = sound(record, at, renewal, now, floor)
    kept = step.record.grant(command.ticket)
    reply = NotHeld() if kept is None else Granted((kept,), now)
    return replace(step, reply=reply)


OUTSIDE = (
    adopting_is_renewing,
    other_mode_is_granted,
    release_frees_anybody,
    force_ignores_the_fence,
    withdraw_forgets_the_place,
    renew_resurrects,
    wakes_are_lost,
)


@pytest.mark.parametrize("law", OUTSIDE)
def test_a_broken_transition_is_found(law: Transition) -> None:
    """The machine finds the fault."""
    with pytest.raises(AssertionError):
        tell(law)


# ------------------------------------------------------------ broken from inside

may_enter, enter, without, expire, adopt, converted, upgrade = (
    admission.may_enter,
    transition._enter,
    mutex_record.drop_grants,
    mutex_record.expire,
    moves.adopt,
    moves._converted,
    moves.upgrade,
)


def readers_see_no_writer(
    doorman: Doorman, entry: QueueEntry, policy: Policy, now: int
) -> bool:
    """A reader enters beside a writer."""
    return entry.mode is Mode.READ or may_enter(doorman, entry, policy, now)


def writers_alone_raise_the_fence(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted]:
    """The first reader of a batch carries the last writer's fence."""
    if cmd.mode is Mode.READ and not doorman.grants:
        doorman, at = (
            replace(doorman, last=max(0, doorman.last - 1)),
            replace(at, floor=0),
        )
    return enter(doorman, cmd, entry, at)


def every_reader_a_new_fence(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted]:
    """Joining readers raise the fence, and the valid ones before are refused."""
    doorman, granted = enter(doorman, cmd, entry, at)
    fence = doorman.last + 1
    raised = tuple(replace(g, fence=fence) for g in granted.grants)
    others = tuple(g for g in doorman.grants if g not in granted.grants)
    doorman = replace(doorman, last=fence, grants=others + raised)
    return doorman, replace(granted, grants=raised)


def first_out_frees_all(doorman: Doorman, gone: tuple[Grant, ...]) -> Doorman:
    """One reader leaves: all are out."""
    return without(doorman, doorman.grants if gone else gone)


def the_slot_lingers(doorman: Doorman, gone: tuple[Grant, ...]) -> Doorman:
    """A reader that left still waits for its upgrade."""
    return replace(without(doorman, gone), upgrader=doorman.upgrader)


def nothing_expires(doorman: Doorman, now: int) -> Doorman:
    """Grants outlive their leases."""
    return replace(expire(doorman, now), grants=doorman.grants)


def entries_stay(doorman: Doorman, now: int) -> Doorman:
    """Queue entries outlive their clients."""
    return replace(expire(doorman, now), queue=doorman.queue)


def adopted_in_its_phase(
    doorman: Doorman, cmd: Adopt, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """A writer's fence goes along to the adopter."""
    return adopt(replace(doorman, last=doorman.last - 1), cmd, replace(at, floor=0))


def converted_in_its_phase(
    doorman: Doorman, mode: Mode, claim: Claim, at: StepContext
) -> tuple[Doorman, Granted]:
    """A downgrade or upgrade keeps the fence of the phase before."""
    return converted(
        replace(doorman, last=doorman.last - 1), mode, claim, replace(at, floor=0)
    )


def upgraded_over_readers(
    doorman: Doorman, cmd: Upgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld | Conflict | Refused | moves.MustWait]:
    """A reader is upgraded as if it were the only one."""
    alone = tuple(g for g in doorman.grants if g.ticket == cmd.ticket)
    return upgrade(replace(doorman, grants=alone) if alone else doorman, cmd, at)


def kept(doorman: Doorman) -> MutexRecord | None:
    """The mutex record as it was."""
    return None if doorman.seat is None else MutexRecord(doorman.seat, doorman.ends)


# ------------------------------------------------------------------ pushed grants

unoffered, to_writer, asked = (
    admission._unoffered,
    admission._offer_to_writer,
    transition.acquire,
)


def an_unconfirmed_end_is_a_phase(doorman: Doorman, gone: tuple[Grant, ...]) -> Doorman:
    """A pushed grant that nobody confirmed ends as if somebody had written."""
    for grant in gone:
        doorman = mutex_record.without_claim(doorman, grant.ticket)
    return without(replace(doorman, pushed=False) if gone else doorman, gone)


def a_confirmation_asks(
    doorman: Doorman, cmd: Acquire, at: StepContext
) -> tuple[Doorman, transition.AcquireReply]:
    """A confirmation that comes too late is granted anew, or queues."""
    return asked(doorman, replace(cmd, confirms=False), at)


def the_pushed_entry_is_unoffered(
    doorman: Doorman, now: int, offered: Iterable[QueueEntry]
) -> Doorman:
    """The entry of a pushed grant is offered the resource once more."""
    after = unoffered(replace(doorman, pushed=False), now, offered)
    return replace(after, pushed=doorman.pushed)


def the_entry_goes(
    doorman: Doorman, now: int, floor: int | None
) -> tuple[Doorman, tuple[str, ...]]:
    """The entry is dropped with the push: a lost message costs its client its turn."""
    doorman, woken = to_writer(doorman, now, floor)
    if doorman.pushed:
        queue = tuple(p for p in doorman.queue if p.ticket != doorman.grants[0].ticket)
        doorman = replace(doorman, queue=queue)
    return doorman, woken


def nobody_is_notified(
    doorman: Doorman, now: int, floor: int | None
) -> tuple[Doorman, tuple[str, ...]]:
    """A grant is pushed without a message."""
    doorman, woken = to_writer(doorman, now, floor)
    return doorman, () if doorman.pushed else woken


def kept_as_pushed(expires: int | None, lease: int | None, now: int) -> int | None:
    """A confirmed grant still ends with its window."""
    del lease, now
    return expires


INSIDE: dict[str, tuple[tuple[object, str, object], ...]] = {
    "a reader ignores the writer": ((transition, "may_enter", readers_see_no_writer),),
    "the fence is raised by writers alone": (
        (transition, "_enter", writers_alone_raise_the_fence),
    ),
    "every reader has a new fence": ((transition, "_enter", every_reader_a_new_fence),),
    "moves keep their phase": ((moves, "_converted", converted_in_its_phase),),
    "an adopted writer keeps its phase": ((moves, "adopt", adopted_in_its_phase),),
    "fences without a clock": (
        (transition, "new_fence", lambda lock, _floor: lock.last + 1),
        (moves, "new_fence", lambda lock, _floor: lock.last + 1),
    ),
    "a lost seat is ignored": ((transition, "reconcile", lambda lock, _seat: lock),),
    "a foreign seat is ignored": (
        (transition, "foreign_seat", lambda _lock, _seat, **_semaphore: None),
    ),
    "the first out frees all": (
        (mutex_record, "drop_grants", first_out_frees_all),
        (transition, "drop_grants", first_out_frees_all),
        (moves, "drop_grants", first_out_frees_all),
    ),
    "an upgrade pushes readers out": ((moves, "upgrade", upgraded_over_readers),),
    "the upgrader's slot lingers": (
        (mutex_record, "drop_grants", the_slot_lingers),
        (transition, "drop_grants", the_slot_lingers),
        (moves, "drop_grants", the_slot_lingers),
    ),
    "grants outlive their leases": ((transition, "expire", nothing_expires),),
    "entries outlive their owners": ((transition, "expire", entries_stay),),
    "the late head is never skipped": (
        (QueueEntry, "missed_claim", lambda _place, _now: False),
    ),
    "nobody is called": ((transition, "offer", lambda lock, *_rest: (lock, ())),),
    "a ticket is pushed twice": (
        (mutex_record, "without_claim", lambda lock, _ticket: lock),
        (transition, "without_claim", lambda lock, _ticket: lock),
    ),
    "an unconfirmed end is a phase": (
        (mutex_record, "drop_grants", an_unconfirmed_end_is_a_phase),
        (transition, "drop_grants", an_unconfirmed_end_is_a_phase),
    ),
    "a confirmation grants anew": ((transition, "acquire", a_confirmation_asks),),
    "a confirmed grant ends with its window": (
        (transition, "longer", kept_as_pushed),
        (fast_path, "longer", kept_as_pushed),
    ),
    "pushes without end": ((admission, "MAX_LOCAL_TURNS", 10**9),),
    "the pushed entry is unoffered": (
        (admission, "_unoffered", the_pushed_entry_is_unoffered),
    ),
    "the pushed entry goes": ((admission, "_offer_to_writer", the_entry_goes),),
    "a pushed grant is not sent": (
        (admission, "_offer_to_writer", nobody_is_notified),
    ),
    "a withdrawal gives nothing back": (
        (transition, "_unpushed", mutex_record.without_claim),
    ),
    "the ticket of a waiter that left is pushed": (
        (transition, "_unpushed", lambda lock, _ticket: lock),
    ),
    "a pushed grant lasts its whole lease": ((doorman, "min", max),),
    "a lock delay is pushed": (
        (Claim, "may_be_pushed", property(lambda claim: claim.lease is not None)),
    ),
    "the seat is never vacated": (
        (
            transition,
            "sync_mutex_record",
            lambda lock, at, _wall: (lock.seat, at or kept(lock)),
        ),
    ),
}


@pytest.mark.parametrize("fault", INSIDE)
def test_a_broken_rule_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds the fault."""
    for owner, name, broken in INSIDE[fault]:
        monkeypatch.setattr(owner, name, broken, raising=name != "min")
    # The rules are those of the full transition (test_fast_path.py compares the two).
    monkeypatch.setattr(transition, "fast_path", lambda *_: None)
    with pytest.raises(AssertionError):
        tell()


UNFAIR: dict[str, Callable[..., object]] = {
    "joining never closes": lambda _lock, _now: False,
}


@pytest.mark.parametrize("fault", UNFAIR)
def test_a_broken_order_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client starves, and the ending shows it."""
    monkeypatch.setattr(admission, "writer_waits", UNFAIR[fault])
    with pytest.raises(AssertionError):
        tell(to_the_end=True)
