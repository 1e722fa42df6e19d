"""What a step knows beside the record: the time, and who sits in the seat."""

from __future__ import annotations

from collections.abc import Container

from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord, soonest
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.value import replace, value

SHOWN_HOLDERS = 5
_FOREIGN = "foreign "


@value
class StepContext:
    """One step's circumstances.

    ``turns``: what the turn counter becomes if somebody enters an idle resource.
    ``vacate``: nobody enters in this step; the seat is shown vacant to foreigners.
    """

    now: int
    floor: int
    foreign: MutexRecord | None
    turns: int = 0
    vacate: bool = False


def without_own(at: StepContext, tickets: Container[str]) -> StepContext:
    """The moment without a foreign seat in which one of these tickets sits.

    Their holders are told that they hold nothing, see ``seat``.
    """
    foreign = at.foreign
    if foreign is None or foreign.ticket not in tickets:
        return at
    return replace(at, foreign=None)


def new_fence(door: Doorman, floor: int) -> int:
    """The number of a new phase: above all before, even if the record was lost."""
    return max(door.last + 1, floor)


def describe(door: Doorman, foreign: MutexRecord | None) -> tuple[str, ...]:
    """Who holds the resource, for people: mode, holder, host/pid and reason.

    Those whose leases end first; among 10,000 readers a few are enough.
    """
    if foreign is not None:
        return (f"{_FOREIGN}{holder_of(foreign.ticket)}",)
    return shown_as(door.grants)


def shown_as(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    """Return the texts of the grants that end first, as ``describe`` shows holders."""
    shown = soonest(grants, SHOWN_HOLDERS)
    return tuple(f"{grant.mode} {grant.holder} {grant.who}" for grant in shown)


def by_foreigner(holders: tuple[str, ...]) -> bool:
    """Whether it is a foreign seat that was described."""
    return bool(holders) and holders[0].startswith(_FOREIGN)
