"""The transition: one command against one doorman, as a total pure function.

``transition(record, seat, command, now, floor)`` is the definition of this library's
locks. Stores either run it under their own mutual exclusion or implement the same
function in their own language and are held equal to it by a differential test.

``now``: microseconds of the store's clock, read inside the step; or, where a store only
compares and sets, the least that clock can show (``cas/server_time.py``: the swap
is refused if it came too late for that to be true enough). ``floor``: the
store's wall clock in microseconds, the least value a new fence may have, so that
fences rise even when the record was lost. A store that numbers its records otherwise
gives 0, and its wall clock apart.
"""

from __future__ import annotations

from collections.abc import Collection

from aiorwlock_remote.core import mutex_record as seats
from aiorwlock_remote.core.acquire import AcquireReply, MustWait, acquire, withdraw
from aiorwlock_remote.core.admission import (
    may_enter,
    offer,
    retry_after,
    settle,
    skip_entries,
    suspend,
)
from aiorwlock_remote.core.commands import (
    MAX_LOCAL_TURNS,
    Acquire,
    Adopt,
    Answer,
    Command,
    Conflict,
    Downgrade,
    Forced,
    ForceRelease,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.conversion import adopt, downgrade, upgrade
from aiorwlock_remote.core.doorman import (
    UNUSED_DOORMAN,
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
)
from aiorwlock_remote.core.fast_path import fast_path
from aiorwlock_remote.core.step_context import StepContext, describe, without_own
from aiorwlock_remote.core.ticket import Mode, Policy, holder_of
from aiorwlock_remote.core.value import replace, value


@value
class Step:
    """What a command made of a record. ``wakes``: gates with something to claim.

    A step that changed nothing gives the very record it got: nothing to be stored.
    """

    record: Doorman
    seat: MutexRecord | None
    reply: Reply
    wakes: tuple[str, ...] = ()


@value
class _ReleaseDraft:
    """A release, with what it carried along still to be answered."""

    held: bool
    reason: NotHeld
    then: tuple[AcquireReply, ...]


def transition(
    record: Doorman | None,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int | None = None,
) -> Step:
    """Apply one command.

    ``wall``: the wall clock, to show to people; None: ``floor`` is it.

    Raises:
        IllegalCommand: the command makes no sense in this state; nothing changes.
    """
    before = record or UNUSED_DOORMAN
    wall = floor if wall is None else wall
    short = fast_path(before, seat, command, now, floor, wall)
    if short is not None:
        return Step(*short)
    return _step(before, seat, command, now, floor, wall)


def _step(
    before: Doorman,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int,
) -> Step:
    """The transition, whoever is there."""
    at = StepContext(now, floor, seats.foreign_seat(before, seat))
    door = seats.reconcile(seats.expire(before, now), seat)
    door = (settle if at.foreign is None else suspend)(door, now)
    draft: Reply | MustWait | _ReleaseDraft
    match command:
        case Acquire():
            door, draft = acquire(door, command, at)
        case Release():
            door, at, draft = _release(door, command, at)
        case Withdraw():
            door, at, draft = withdraw(door, command, at)
        case Renew():
            door, at, draft = _renew(door, command, at)
        case Downgrade() | Upgrade() | Adopt():
            door, at, draft = _move(door, command, at)
        case ForceRelease():
            door, at, draft = _force(door, command, at)
    wakes: tuple[str, ...] = ()
    if at.foreign is None:
        door, wakes = offer(door, now)
    reply = _reply(draft, door, at)
    ours, after = seats.sync_mutex_record(door, at.foreign, wall)
    if door == before and ours == before.seat:
        return Step(before, after, reply, wakes)
    created = before.created or wall
    door = replace(door, seat=ours, created=created, updated=wall)
    return Step(door, after, reply, wakes)


def skip_unreachable(step: Step, gates: Collection[str], now: int) -> Step:
    """The step, when some of those it wakes turned out to be gone.

    They are passed over and the next are called: ``wakes`` are those alone. To be
    repeated until everybody hears or nobody is left. The reply stays as it was; an
    upgrader that is gone costs the rest of its slot's life.
    """
    door, wakes = offer(skip_entries(step.record, gates, now), now)
    return Step(door, step.seat, step.reply, wakes)


def peek(
    record: Doorman, seat: MutexRecord | None, now: int
) -> tuple[Doorman, MutexRecord | None]:
    """The record as the next step would find it, and the seat if it is foreign."""
    foreign = seats.foreign_seat(record, seat)
    door = seats.reconcile(seats.expire(record, now), seat)
    if foreign is None:
        door, _ = offer(door, now)
    return door, foreign


def next_attempt(
    record: Doorman, seat: MutexRecord | None, gate: str, now: int
) -> tuple[tuple[object, ...], int] | None:
    """When a process should ask again: (what that is due to, microseconds from now).

    For stores whose waiters watch the record themselves. None: nothing to expect, or
    no place there. The first part is equal as long as the reason is the same.
    """
    door, foreign = peek(record, seat, now)
    slot = door.upgrader
    if slot is not None and slot.client_id == gate and slot.called:
        return ("upgrade", slot.ticket), 0
    soonest: tuple[tuple[object, ...], int] | None = None
    for place in door.queue:
        if place.client_id != gate:
            continue
        free = foreign is None and may_enter(door, place, Policy.FAIR, now)
        wait = 0 if free else retry_after(door, place, foreign, now)
        if wait is not None and (soonest is None or wait < soonest[1]):
            due_to = (place.number, free, door.last, len(door.grants), now + wait)
            soonest = (due_to[:4] if free else due_to), wait
    return soonest


def _release(
    door: Doorman, cmd: Release, at: StepContext
) -> tuple[Doorman, StepContext, _ReleaseDraft]:
    grant = door.grant(cmd.ticket)
    turns = 0
    if grant is not None and cmd.mode in (None, grant.mode):
        held, turns = True, door.turns + 1
        door = seats.drop_grants(door, (grant,))
    elif at.foreign is not None and at.foreign.ticket == cmd.ticket:
        held = cmd.mode is not Mode.READ  # the record was lost; the seat is enough
        at = replace(at, foreign=None) if held else at
    else:
        held = False
    gone = NotHeld() if held else NotHeld(seats.why_gone(door, holder_of(cmd.ticket)))
    # Inside one process the seat goes from ticket to ticket; now and then it is left
    # vacant until the process asks again, so that foreign pollers get a chance.
    vacate = turns > MAX_LOCAL_TURNS
    carried = replace(at, turns=0 if vacate else turns, vacate=vacate)
    answers: list[AcquireReply] = []
    for command in cmd.then:
        door, answer = acquire(door, command, carried)
        answers.append(answer)
    return door, at, _ReleaseDraft(held, gone, tuple(answers))


def _renew(
    door: Doorman, cmd: Renew, at: StepContext
) -> tuple[Doorman, StepContext, Renewed]:
    leases = dict(cmd.tickets)
    renewed = {
        g.ticket: replace(g, expires=_longer(g.expires, leases[g.ticket], at.now))
        for g in door.grants
        if g.ticket in leases
    }
    grants = tuple(renewed.get(g.ticket, g) for g in door.grants)
    outcomes: list[Grant | NotHeld] = [
        renewed.get(t) or NotHeld(seats.why_gone(door, holder_of(t)))
        for t, _ in cmd.tickets
    ]
    at = without_own(at, leases.keys() - renewed.keys())
    return replace(door, grants=grants), at, Renewed(tuple(outcomes))


def _move(
    door: Doorman, cmd: Downgrade | Upgrade | Adopt, at: StepContext
) -> tuple[Doorman, StepContext, Granted | NotHeld | Conflict | Refused | MustWait]:
    draft: Granted | NotHeld | Conflict | Refused | MustWait
    match cmd:
        case Downgrade():
            door, draft = downgrade(door, cmd, at)
        case Upgrade():
            door, draft = upgrade(door, cmd, at)
        case Adopt():
            door, draft = adopt(door, cmd, at)
    if isinstance(draft, NotHeld):  # neither of both tickets is a grant any more
        at = without_own(at, (cmd.ticket, cmd.claim.ticket))
    return door, at, draft


def _longer(expires: int | None, lease: int | None, now: int) -> int | None:
    """A renewal never shortens: its holder may believe what it was told before."""
    if expires is None or lease is None:
        return None
    return max(expires, now + lease)


def _force(
    door: Doorman, cmd: ForceRelease, at: StepContext
) -> tuple[Doorman, StepContext, Forced]:
    if cmd.seat is not None:
        if at.foreign is None or at.foreign.value != cmd.seat:
            return door, at, Forced(done=False)
        return door, replace(at, foreign=None), Forced(done=True)
    for grant in door.grants:
        if grant.holder == cmd.holder and grant.fence == cmd.fence:
            door = seats.drop_grants(door, (grant,))
            note = LossNote(grant.fence, grant.holder, "forced")
            return seats.remember(door, note), at, Forced(done=True)
    return door, at, Forced(done=False)


def _reply(
    draft: Reply | MustWait | _ReleaseDraft, door: Doorman, at: StepContext
) -> Reply:
    if isinstance(draft, MustWait):
        return _waiting(draft, door, at)
    if isinstance(draft, _ReleaseDraft):
        then: tuple[Answer, ...] = tuple(
            _waiting(entry, door, at) if isinstance(entry, MustWait) else entry
            for entry in draft.then
        )
        return Released(draft.held, draft.reason.reason, then)
    return draft


def _waiting(queued: MustWait, door: Doorman, at: StepContext) -> Waiting:
    holders = describe(door, at.foreign)
    place = door.entry(queued.client_id, queued.mode)
    if place is None:  # an upgrader: its slot is not in the queue
        return Waiting(0, None, holders)
    ahead = sum(p.number < place.number for p in door.queue)
    if place.claim_until is not None:  # the resource stands free for it right now
        return Waiting(ahead, 0, holders)
    return Waiting(ahead, retry_after(door, place, at.foreign, at.now), holders)
