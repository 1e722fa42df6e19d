"""Entering: acquire, and taking an acquire back."""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote.core.admission import may_enter, retry_after
from aiorwlock_remote.core.commands import (
    AHEAD,
    BARRED,
    FULL,
    HELD,
    OTHER_MODE,
    Acquire,
    Granted,
    Refused,
    Withdraw,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Doorman, QueueEntry
from aiorwlock_remote.core.mutex_record import drop_grants
from aiorwlock_remote.core.step_context import StepContext, describe, new_fence
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace


@dataclass(frozen=True, slots=True)
class MustWait:
    """An acquire that waits; what it is told depends on how the step ends."""

    client_id: str
    mode: Mode


AcquireReply = Granted | Refused | MustWait


def acquire(
    door: Doorman, cmd: Acquire, at: StepContext
) -> tuple[Doorman, AcquireReply]:
    """Grant, or give a place, or refuse; idempotent by ticket."""
    live = tuple(g for c in cmd.claims if (g := door.grant(c.ticket)) is not None)
    if any(g.mode is not cmd.mode for g in live):
        return door, Refused(OTHER_MODE, None, describe(door, at.foreign))
    own = door.entry(cmd.client_id, cmd.mode) if cmd.client_id else None
    if len(live) == len(cmd.claims):
        return door, Granted(live, at.now, placed=own is not None)
    if own:
        place = _refreshed(own, cmd, at.now)
        queue = tuple(place if p is own else p for p in door.queue)
        door = replace(door, queue=queue)
    else:
        place = _newcomer(door, cmd, at.now)
    open_now = at.foreign is None and not at.vacate
    if open_now and may_enter(door, place, cmd.policy, at.now):
        return _enter(door, cmd, place, at)
    if not cmd.may_queue:
        wait = retry_after(door, place, at.foreign, at.now)
        return door, Refused(_why(door, cmd, at), wait, describe(door, at.foreign))
    if own is None:
        limit = cmd.max_waiters
        if limit is not None and sum(p.waiting for p in door.queue) >= limit:
            return door, Refused(FULL, None, describe(door, at.foreign))
        door = replace(door, number=place.number, queue=(*door.queue, place))
    if live:  # a repeated request: some of its readers are in already
        return door, Granted(live, at.now, placed=True)
    return door, MustWait(cmd.client_id, cmd.mode)


def withdraw(
    door: Doorman, cmd: Withdraw, at: StepContext
) -> tuple[Doorman, StepContext, Withdrawn]:
    """Undo an acquire, whether it was granted, queued or never arrived."""
    gone = tuple(g for t in cmd.tickets if (g := door.grant(t)) is not None)
    door = drop_grants(door, gone)
    held = tuple(g.ticket for g in gone)
    if at.foreign is not None and at.foreign.ticket in cmd.tickets:
        held = (at.foreign.ticket,)  # the record was lost; the seat is enough
        at = replace(at, foreign=None)
    slot = door.upgrader
    if slot is not None and slot.ticket == cmd.upgrader:
        door = replace(door, upgrader=None)
    own = None if cmd.keep else door.entry(cmd.client_id, cmd.mode)
    if own is not None:
        door = replace(door, queue=tuple(p for p in door.queue if p is not own))
    return door, at, Withdrawn(held)


def _enter(
    door: Doorman, cmd: Acquire, place: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted]:
    joins = bool(door.grants)  # may_enter lets only readers past live grants
    fence = door.last if joins else new_fence(door, at.floor)
    granted = tuple(
        door.grant(claim.ticket) or claim.grant(cmd.mode, fence, at.now)
        for claim in cmd.claims
    )
    others = tuple(g for g in door.grants if g not in granted)
    queue = tuple(p for p in door.queue if p.number != place.number)
    number = door.number
    if cmd.more:  # served once; its other tasks queue up behind the other processes
        number += 1
        tail = replace(
            place, number=number, waiting=cmd.more, claim_window=cmd.claim_window
        )
        queue = (*queue, tail)
    writing = cmd.mode is Mode.WRITE
    door = replace(
        door,
        last=fence,
        grants=others + granted,
        queue=queue,
        number=number,
        admit_upto=0 if writing else door.admit_upto,
        admit_until=0 if writing else door.admit_until,
        turns=door.turns if joins else at.turns,
        upgraded=False,
    )
    return door, Granted(granted, at.now, placed=bool(cmd.more))


def _newcomer(door: Doorman, cmd: Acquire, now: int) -> QueueEntry:
    return QueueEntry(
        number=door.number + 1,
        client_id=cmd.client_id,
        mode=cmd.mode,
        since=now,
        expires=now + cmd.entry_ttl,
        claim_window=cmd.claim_window,
        waiting=cmd.waiting,
        who=cmd.claims[0].who,
    )


def _refreshed(own: QueueEntry, cmd: Acquire, now: int) -> QueueEntry:
    """Its owner asks: it is not late, and it lives on.

    Whoever missed its claim window gets one twice as long until it is served: too short
    a window, missed each time, would starve it (LockLive, ``drawn_missed_window_r`` and
    ``_w``), too long a one lets a place whose owner died cost more than it must.
    """
    window = max(own.claim_window, cmd.claim_window)
    if own.missed_claim(now):
        window = min(2 * window, cmd.entry_ttl)
    return replace(
        own,
        expires=now + cmd.entry_ttl,
        claim_window=window,
        waiting=cmd.waiting,
        claim_until=None,
        who=cmd.claims[0].who,
    )


def _why(door: Doorman, cmd: Acquire, at: StepContext) -> str:
    if at.foreign is not None:
        return HELD
    if door.barred_until > at.now:
        return BARRED
    shared = cmd.mode is Mode.READ and not door.writing
    return HELD if door.grants and not shared else AHEAD
