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

Entering: acquire, and taking an acquire back.

Moves: writer → reader, reader → writer, and from one owner to another.

A downgrade that kept its phase number would let a reader's session accept what its own
expired writer still sends (model LockRec, config ``downgrade_keeps_phase``). So each
move of a writer, or to one, starts a new phase. Readers share a phase, and who adopts
a reader's grant is one more of them.

Short cuts of the transition for whoever is alone: in, and out again.

Most locks are free when somebody comes, and nobody waits when they are given back.
Both steps are told here at a fraction of the cost, and exactly as the transition would
tell them (``tests/core/test_fast_path.py``). Records are made anew: little outlives
them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aiorwlock_remote.core import mutex_record as seats
from aiorwlock_remote.core.admission import (
    admitted,
    may_enter,
    offer,
    retry_after,
    settle,
    skip_entries,
    suspend,
)
from aiorwlock_remote.core.commands import (
    AHEAD,
    BARRED,
    FULL,
    HELD,
    MAX_LOCAL_TURNS,
    OTHER_MODE,
    Acquire,
    Adopt,
    Answer,
    Claim,
    Command,
    Conflict,
    Downgrade,
    Forced,
    ForceRelease,
    Granted,
    IllegalCommand,
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
    Withdrawn,
)
from aiorwlock_remote.core.doorman import (
    UNUSED_DOORMAN,
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    PendingUpgrade,
    QueueEntry,
    StepContext,
    describe_holders,
    mutex_record_value,
    new_fence,
    without_own_record,
)
from aiorwlock_remote.core.mutex_record import drop_grants, why_gone
from aiorwlock_remote.core.ticket import Mode, Policy, holder_of
from aiorwlock_remote.core.value import replace, value


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
        return door, Refused(OTHER_MODE, None, describe_holders(door, at.foreign))
    own = door.entry(cmd.client_id, cmd.mode) if cmd.client_id else None
    if len(live) == len(cmd.claims):
        return door, Granted(live, at.now, placed=own is not None)
    if own:
        place = _refreshed_entry(own, cmd, at.now)
        queue = tuple(place if p is own else p for p in door.queue)
        door = replace(door, queue=queue)
    else:
        place = _new_entry(door, cmd, at.now)
    open_now = at.foreign is None and not at.vacate
    if open_now and may_enter(door, place, cmd.policy, at.now):
        return _enter(door, cmd, place, at)
    if not cmd.may_queue:
        wait = retry_after(door, place, at.foreign, at.now)
        return door, Refused(
            _refusal_reason(door, cmd, at), wait, describe_holders(door, at.foreign)
        )
    if own is None:
        limit = cmd.max_waiters
        if limit is not None and sum(p.waiting for p in door.queue) >= limit:
            return door, Refused(FULL, None, describe_holders(door, at.foreign))
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


def _new_entry(door: Doorman, cmd: Acquire, now: int) -> QueueEntry:
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


def _refreshed_entry(own: QueueEntry, cmd: Acquire, now: int) -> QueueEntry:
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


def _refusal_reason(door: Doorman, cmd: Acquire, at: StepContext) -> str:
    if at.foreign is not None:
        return HELD
    if door.barred_until > at.now:
        return BARRED
    shared = cmd.mode is Mode.READ and not door.writing
    return HELD if door.grants and not shared else AHEAD


def downgrade(
    door: Doorman, cmd: Downgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """Writer → reader; the readers waiting at that moment may join."""
    done = door.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.READ:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    if old.mode is not Mode.WRITE:
        raise IllegalCommand("only a writer can be downgraded")
    return _converted(drop_grants(door, (old,)), Mode.READ, cmd.claim, at)


def upgrade(
    door: Doorman, cmd: Upgrade, at: StepContext
) -> tuple[Doorman, Granted | NotHeld | Conflict | Refused | MustWait]:
    """The only reader → writer; among several, one at most may wait to be the only."""
    done = door.grant(cmd.claim.ticket)
    if done is not None and done.mode is Mode.WRITE:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    if old.mode is not Mode.READ:
        raise IllegalCommand("only a reader can be upgraded")
    slot = door.upgrader
    if slot is not None and slot.ticket != cmd.ticket:
        return door, Conflict()
    barred = door.barred_until > at.now  # another reader's lease ran out just now
    # Admitted readers go first: who upgrades is in already, and would lock them out
    # again and again (LockLive, ``drawn_upgrade_rushes``).
    first = admitted(door, at.now)
    if len(door.grants) == 1 and not barred and not first:
        door = replace(drop_grants(door, (old,)), admit_upto=0, admit_until=0)
        door, granted = _converted(door, Mode.WRITE, cmd.claim, at)
        return replace(door, upgraded=True), granted
    if not cmd.may_wait:
        why, wait = HELD, None
        if barred:
            why, wait = BARRED, door.barred_until - at.now
        return door, Refused(why, wait, describe_holders(door, at.foreign))
    slot = PendingUpgrade(cmd.ticket, cmd.client_id, at.now + cmd.entry_ttl)
    return replace(door, upgrader=slot), MustWait(cmd.client_id, Mode.WRITE)


def adopt(
    door: Doorman, cmd: Adopt, at: StepContext
) -> tuple[Doorman, Granted | NotHeld]:
    """From one owner to another; nobody left, so nobody who waits is let in."""
    done = door.grant(cmd.claim.ticket)
    if done is not None:
        return door, Granted((done,), at.now)
    old = door.grant(cmd.ticket)
    if old is None:
        return door, NotHeld(why_gone(door, holder_of(cmd.ticket)))
    fence = new_fence(door, at.floor) if old.mode is Mode.WRITE else door.last
    grant = cmd.claim.grant(old.mode, fence, at.now)
    grants = tuple(grant if g is old else g for g in door.grants)
    slot = door.upgrader
    if slot is not None and slot.ticket == old.ticket:
        slot = None  # who waited there gave it away
    door = replace(door, last=fence, grants=grants, upgrader=slot)
    return door, Granted((grant,), at.now)


def _converted(
    door: Doorman, mode: Mode, claim: Claim, at: StepContext
) -> tuple[Doorman, Granted]:
    fence = new_fence(door, at.floor)
    grant = claim.grant(mode, fence, at.now)
    return replace(door, last=fence, grants=(grant,)), Granted((grant,), at.now)


FastStep = tuple[Doorman, MutexRecord | None, Granted | Released]


def fast_path(
    before: Doorman,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int,
) -> FastStep | None:
    """Record, seat and reply after the step; None: it is not that simple."""
    if before.queue or before.upgrader is not None or before.barred_until:
        return None
    if seat is None:
        if isinstance(command, Acquire) and not before.grants:
            return _fast_acquire(before, command, now, floor, wall)
    elif isinstance(command, Release) and seat.value == before.seat:
        return _fast_release(before, command, now, wall)
    return None


def _fast_acquire(
    before: Doorman, cmd: Acquire, now: int, floor: int, wall: int
) -> FastStep | None:
    """One writer enters an idle resource."""
    if cmd.mode is not Mode.WRITE or cmd.more or before.seat is not None:
        return None
    claim = cmd.claims[0]  # writers come one at a time
    fence = max(before.last + 1, floor)
    grant = claim.grant(Mode.WRITE, fence, now)
    grants = (grant,)
    value = mutex_record_value(grants, wall)
    record = Doorman(
        last=fence,
        grants=grants,
        number=before.number,
        seat=value,
        endings=before.endings,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    return record, MutexRecord(value, grant.expires), Granted(grants, now)


def _fast_release(
    before: Doorman, cmd: Release, now: int, wall: int
) -> FastStep | None:
    """The one writer leaves."""
    if cmd.then or len(before.grants) != 1 or before.upgraded or before.endings:
        return None
    grant = before.grants[0]
    known = grant.ticket == cmd.ticket and cmd.mode in (None, Mode.WRITE)
    if not known or grant.mode is not Mode.WRITE or grant.dead(now):
        return None
    record = Doorman(
        last=before.last,
        number=before.number,
        admit_upto=before.number,
        turns=before.turns,
        created=before.created or wall,
        updated=wall,
        extra=before.extra,
    )
    return record, None, Released(held=True)


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
            door, at, draft = _convert(door, command, at)
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
    at = without_own_record(at, leases.keys() - renewed.keys())
    return replace(door, grants=grants), at, Renewed(tuple(outcomes))


def _convert(
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
        at = without_own_record(at, (cmd.ticket, cmd.claim.ticket))
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
    holders = describe_holders(door, at.foreign)
    place = door.entry(queued.client_id, queued.mode)
    if place is None:  # an upgrader: its slot is not in the queue
        return Waiting(0, None, holders)
    ahead = sum(p.number < place.number for p in door.queue)
    if place.claim_until is not None:  # the resource stands free for it right now
        return Waiting(ahead, 0, holders)
    return Waiting(ahead, retry_after(door, place, at.foreign, at.now), holders)
