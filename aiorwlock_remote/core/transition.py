"""The transition: one command against one doorman, as a total pure function.

``transition(record, seat, command, now, floor)`` is the definition of this library's
locks. A store either runs it under its own mutual exclusion or implements the same
function in its own language (Lua on Redis), which a differential test compares with
this one.

Invariants of every step. ``tests/core/step_invariants.py`` asserts them on random
histories (test_random_histories.py), and ``tests/core/test_controls.py`` breaks one
rule after the other to show that each is noticed. The models in ``spec/`` prove most of
them for few clients.

* A writer holds alone (``exclusion``; model LockRec).
* A new phase has a greater fence than all before; only readers join a phase
  (``fences``).
* A ticket is granted once, and only to a command that asks for it, or by an offer to
  the queue entry that has it (``nothing_comes_back``).
* A pushed grant that is not confirmed ends with its claim window, and ends no phase
  (``pushes``; models PushedGrant and LockLive).
* A live grant ends only by a command that names it (``nothing_gets_lost``).
* The mutex record agrees with the grants; a foreign one stays as it is (``the_seat``;
  model Seat).
* A client has at most one queue entry for each mode, in order of arrival (``places``).
* An entry that may be granted has been called: no wake-up is lost (``calls``; model
  LockLive).
* No holder of a permit has more company than its limit allows; permits are given out
  in the order of arrival (``permits``; model Permits).
* A waiter under ``Policy.FAIR`` is granted in bounded time
  (test_from_any_state_every_fair_waiter_is_served,
  test_nobody_starves_while_others_come_and_go).
* An illegal command raises and changes nothing (test_an_illegal_move_changes_nothing).
"""

from __future__ import annotations

from collections.abc import Collection

from aiorwlock_remote.core.admission import (
    may_enter,
    newly_pushed,
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
    OTHER_MODE,
    Acquire,
    Adopt,
    Answer,
    Command,
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
    with_claim,
)
from aiorwlock_remote.core.doorman import (
    MAX_LOCAL_TURNS,
    UNUSED_DOORMAN,
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    QueueEntry,
    StepContext,
    describe_holders,
    new_fence,
    without_own_record,
)
from aiorwlock_remote.core.fast_path import fast_path
from aiorwlock_remote.core.moves import MustWait, move
from aiorwlock_remote.core.mutex_record import (
    confirmed,
    drop_grants,
    expire,
    foreign_seat,
    longer,
    reconcile,
    remember,
    sync_mutex_record,
    why_gone,
    without_claim,
)
from aiorwlock_remote.core.permits import (
    free_permits,
    limit_for,
    next_permit,
    offer_permits,
    take_permits,
    why_refused,
)
from aiorwlock_remote.core.ticket import Mode, Policy, holder_of
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason


@value
class Step:
    """Result of a command: the new doorman and mutex record, and the reply.

    ``wakes``: ids of the clients to wake because they may claim the resource now.
    ``pushed``: the grant that the message to the only client in ``wakes`` is to tell.
    """

    record: Doorman
    seat: MutexRecord | None
    reply: Reply
    wakes: tuple[str, ...] = ()
    pushed: Grant | None = None


AcquireReply = Granted | Refused | MustWait | NotHeld


@value
class _ReleaseDraft:
    held: bool
    reason: LossReason
    then: tuple[AcquireReply, ...]


_Draft = Reply | MustWait | _ReleaseDraft


def transition(
    record: Doorman | None,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int | None = None,
    *,
    semaphore: bool = False,
) -> Step:
    """Apply one command to the stored state of a resource; pure and total.

    Args:
        record: The stored doorman; None if the store has none.
        seat: The published mutex record as the store has it; None if there is none.
        command: What a client asks for.
        now: Microseconds of the store's clock, read inside the step. A store that only
            compares and sets passes a lower bound of that clock, and refuses the swap
            if it comes too late for it (``cas/server_time.py``).
        floor: The lowest fence of a new phase: the store's wall clock in microseconds,
            so that fences rise even if the doorman was lost. A store that numbers its
            records otherwise passes 0.
        wall: The store's wall clock in microseconds, for times shown to people. None
            means that ``floor`` is that clock.
        semaphore: Whether the resource is a semaphore (``Resource.is_semaphore``).

    Raises:
        IllegalCommand: The command makes no sense in this state; nothing was changed.
    """
    before = record or UNUSED_DOORMAN
    wall = floor if wall is None else wall
    short = fast_path(before, seat, command, now, floor, wall)
    if short is not None:
        return Step(*short)
    return _step(before, seat, command, now, floor, wall, semaphore=semaphore)


def _step(
    before: Doorman,
    seat: MutexRecord | None,
    command: Command,
    now: int,
    floor: int,
    wall: int,
    *,
    semaphore: bool = False,
) -> Step:
    at = StepContext(now, floor, foreign_seat(before, seat, semaphore=semaphore))
    doorman = reconcile(expire(before, now), seat)
    if not doorman.has_permits:
        doorman = (settle if at.foreign is None else suspend)(doorman, now)
    draft: _Draft
    match command:
        case Acquire():
            doorman, draft = acquire(doorman, command, at)
            if isinstance(draft, NotHeld):
                at = without_own_record(at, (command.claims[0].ticket,))
        case Release():
            doorman, at, draft = _release(doorman, command, at)
        case Withdraw():
            doorman, at, draft = withdraw(doorman, command, at)
        case Renew():
            doorman, at, draft = _renew(doorman, command, at)
        case Downgrade() | Upgrade() | Adopt():
            doorman, at, draft = move(doorman, command, at)
        case ForceRelease():
            doorman, at, draft = _force(doorman, command, at)
    wakes: tuple[str, ...] = ()
    if at.foreign is None:
        # Nothing is offered while another program has the mutex record: a claim window
        # would open and close unused
        # (test_a_window_that_a_foreign_program_sat_through_opens_anew).
        doorman, wakes = _offer(doorman, now, floor)
    # The reply comes after the offer: a waiter to which this very step offers the
    # resource has ``retry_after`` 0
    # (test_the_offer_of_a_free_resource_is_in_the_reply).
    reply = _reply(draft, doorman, at)
    pushed = newly_pushed(doorman, wakes)
    ours, after = sync_mutex_record(doorman, at.foreign, wall)
    # The very object the store passed in: by identity it sees that nothing is written.
    if doorman == before and ours == before.seat:
        return Step(before, after, reply, wakes)
    created = before.created or wall
    doorman = replace(doorman, seat=ours, created=created, updated=wall)
    return Step(doorman, after, reply, wakes, pushed)


def peek(
    record: Doorman, seat: MutexRecord | None, now: int, *, semaphore: bool
) -> tuple[Doorman, MutexRecord | None]:
    """Return the doorman as a step at ``now`` finds it, without what has expired.

    The second item of the pair is ``seat`` if another program wrote that mutex record,
    else None. ``semaphore``: as for ``transition``.
    """
    foreign = foreign_seat(record, seat, semaphore=semaphore)
    doorman = reconcile(expire(record, now), seat)
    # As a step does: whether the resource is offered decides what a waiter sees.
    if foreign is None:
        doorman, _ = _offer(doorman, now)
    return doorman, foreign


def skip_unreachable(
    step: Step, client_ids: Collection[str], now: int, floor: int
) -> Step:
    """Return the step with its offer passed on from clients that cannot be reached.

    For stores that know whether a wake-up has a receiver. ``client_ids``: clients in
    ``step.wakes`` that have none. Their entries count as having missed their claim, and
    the new ``wakes`` has only the clients called instead. Call again if some of those
    cannot be reached either. The reply stays as it was. A reader that waits to upgrade
    is not skipped: it keeps new readers out until its waiting time expires.
    """
    doorman = step.record
    if step.pushed is not None and step.wakes[0] in client_ids:
        doorman = drop_grants(doorman, doorman.grants)
    doorman, wakes = _offer(skip_entries(doorman, client_ids, now), now, floor)
    pushed = newly_pushed(doorman, wakes)
    ours, seat = sync_mutex_record(doorman, None, floor)
    return Step(replace(doorman, seat=ours), seat, step.reply, wakes, pushed)


def next_attempt(
    record: Doorman, seat: MutexRecord | None, client_id: str, now: int
) -> tuple[tuple[object, ...], int] | None:
    """Return why and in how many microseconds a client should ask again, or None.

    For stores whose waiters poll the record themselves. None if the client has no queue
    entry, or waits for nothing that expires. The first item of the pair is equal as
    long as the cause is the same, so that a poller does not ask twice for one cause.
    """
    doorman, foreign = peek(record, seat, now, semaphore=record.has_permits)
    slot = doorman.upgrader
    if slot is not None and slot.client_id == client_id and slot.called:
        return ("upgrade", slot.ticket), 0
    soonest: tuple[tuple[object, ...], int] | None = None
    for entry in doorman.queue:
        if entry.client_id != client_id:
            continue
        # Granted already, by a message that may be lost.
        pushed = doorman.has_pushed(entry.ticket)
        free = foreign is None and (pushed or _may_take(doorman, entry, now))
        wait = 0 if free else _retry_after(doorman, entry, foreign, now)
        if wait is not None and (soonest is None or wait < soonest[1]):
            due_to = (entry.number, free, doorman.last, len(doorman.grants), now + wait)
            soonest = (due_to[:4] if free else due_to), wait
    return soonest


def turns_ahead(doorman: Doorman, client_id: str) -> int:
    """Return how many turns of others come before that of this client, about."""
    slot = doorman.upgrader
    if slot is not None and slot.client_id == client_id:
        return 0
    for index, entry in enumerate(doorman.queue):
        if entry.client_id == client_id:
            # Readers enter together, and the holders of permits many at a time.
            shared = entry.mode is Mode.READ
            return 0 if shared else index // max(1, entry.limit)
    return 0


def _offer(
    doorman: Doorman, now: int, floor: int | None = None
) -> tuple[Doorman, tuple[str, ...]]:
    if doorman.has_permits:
        return offer_permits(doorman, now)
    return offer(doorman, now, floor)


def _may_take(doorman: Doorman, entry: QueueEntry, now: int) -> bool:
    if entry.mode is Mode.PERMIT:
        return free_permits(doorman, entry, now) > 0
    return may_enter(doorman, entry, Policy.FAIR, now)


def _retry_after(
    doorman: Doorman, entry: QueueEntry, foreign: MutexRecord | None, now: int
) -> int | None:
    wait = next_permit if entry.mode is Mode.PERMIT else retry_after
    return wait(doorman, entry, foreign, now)


def acquire(
    doorman: Doorman, cmd: Acquire, at: StepContext
) -> tuple[Doorman, AcquireReply]:
    """Grant the claims of ``cmd``, or queue or refuse them.

    Return the new doorman and the reply. A repeated acquire changes nothing.
    """
    _check_kind(doorman, cmd)
    live = tuple(g for c in cmd.claims if (g := doorman.grant(c.ticket)) is not None)
    if any(g.mode is not cmd.mode for g in live):
        return doorman, Refused(OTHER_MODE, None, describe_holders(doorman, at.foreign))
    own = doorman.entry(cmd.client_id, cmd.mode) if cmd.client_id else None
    # A repeated request of a client whose first reply was lost gets the same grants
    # (test_asked_again_the_same_ticket_has_the_same_grant).
    if len(live) == len(cmd.claims) and not doorman.pushed:
        return doorman, Granted(live, at.now, placed=own is not None)
    if cmd.confirms and not live:
        ticket = cmd.claims[0].ticket
        doorman = without_claim(doorman, ticket)
        return doorman, NotHeld(why_gone(doorman, holder_of(ticket)))
    if own:
        entry = _refreshed_entry(own, cmd, at.now)
        queue = tuple(entry if p is own else p for p in doorman.queue)
        doorman = replace(doorman, queue=queue)
    else:
        entry = _new_entry(doorman, cmd, at.now)
    if live and doorman.pushed:
        expires = longer(live[0].expires, cmd.claims[0].lease, at.now)
        # From now on the lease counts from this request, as for any acquire.
        grant = replace(live[0], since=at.now, expires=expires)
        doorman = replace(doorman, grants=(grant,), pushed=False)
        return _enter(doorman, cmd, entry, at)
    admitted = _admit(doorman, cmd, entry, at)
    if admitted is not None:
        return admitted
    if not cmd.may_queue:
        wait = _retry_after(doorman, entry, at.foreign, at.now)
        return doorman, Refused(
            _refusal_reason(doorman, cmd, entry, at),
            wait,
            describe_holders(doorman, at.foreign),
        )
    if own is None:
        limit = cmd.max_waiters
        if limit is not None and sum(p.waiting for p in doorman.queue) >= limit:
            return doorman, Refused(FULL, None, describe_holders(doorman, at.foreign))
        doorman = replace(doorman, number=entry.number, queue=(*doorman.queue, entry))
    # A repeated request whose first attempt admitted some of its readers: their grants
    # must be reported, or they would be held by no task
    # (test_a_repeated_batch_tells_who_is_in_already).
    if live:
        return doorman, Granted(live, at.now, placed=True)
    return doorman, MustWait(cmd.client_id, cmd.mode)


def _check_kind(doorman: Doorman, cmd: Acquire) -> None:
    used = bool(doorman.grants or doorman.queue)
    if used and doorman.has_permits is not (cmd.mode is Mode.PERMIT):
        raise IllegalCommand("a semaphore and a lock are two resources")


def _admit(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    if cmd.mode is Mode.PERMIT:
        return take_permits(doorman, cmd, entry, at)
    open_now = at.foreign is None and not at.vacate
    if open_now and may_enter(doorman, entry, cmd.policy, at.now):
        return _enter(doorman, cmd, entry, at)
    return None


def _enter(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted]:
    # ``may_enter`` lets only readers past live grants, and they share the phase's fence
    # (LockRec, ``fence_for_each_reader``).
    joins = bool(doorman.grants)
    fence = doorman.last if joins else new_fence(doorman, at.floor)
    granted = tuple(
        doorman.grant(claim.ticket) or claim.grant(cmd.mode, fence, at.now)
        for claim in cmd.claims
    )
    others = tuple(g for g in doorman.grants if g not in granted)
    queue = tuple(p for p in doorman.queue if p.number != entry.number)
    number = doorman.number
    # Served once, the client's other tasks queue up behind all other clients: a busy
    # process would keep the lock to itself (test_more_puts_the_process_at_the_tail).
    if cmd.more:
        number += 1
        queue = (*queue, cmd.entry_behind(entry, number, at.now))
    writing = cmd.mode is Mode.WRITE
    doorman = replace(
        doorman,
        last=fence,
        grants=others + granted,
        queue=queue,
        number=number,
        admit_upto=0 if writing else doorman.admit_upto,
        admit_until=0 if writing else doorman.admit_until,
        turns=doorman.turns if joins else at.turns,
        upgraded=False,
    )
    return doorman, Granted(granted, at.now, placed=bool(cmd.more))


def _new_entry(doorman: Doorman, cmd: Acquire, now: int) -> QueueEntry:
    first = cmd.claims[0]
    entry = QueueEntry(
        number=doorman.number + 1,
        client_id=cmd.client_id,
        mode=cmd.mode,
        since=now,
        expires=now + cmd.entry_ttl,
        claim_window=cmd.claim_window,
        waiting=cmd.waiting,
        who=first.who,
        limit=cmd.limit,
    )
    return with_claim(entry, first, first.who) if cmd.push else entry


def _refreshed_entry(own: QueueEntry, cmd: Acquire, now: int) -> QueueEntry:
    # A window that is always too short starves its client (LockLive,
    # ``drawn_missed_window_r`` and ``_w``); one that is always long makes an entry
    # whose client died cost more. So each missed claim doubles it, until the client is
    # served.
    window = max(own.claim_window, cmd.claim_window)
    if own.missed_claim(now):
        window = min(2 * window, cmd.entry_ttl)
    first = cmd.claims[0]
    return replace(
        with_claim(own, first if cmd.push else None, first.who),
        expires=now + cmd.entry_ttl,
        claim_window=window,
        waiting=cmd.waiting,
        claim_until=None,
        limit=cmd.limit,
    )


def _refusal_reason(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> str:
    if cmd.mode is Mode.PERMIT:
        return why_refused(doorman, entry, at)
    if at.foreign is not None:
        return HELD
    if doorman.barred_until > at.now:
        return BARRED
    shared = cmd.mode is Mode.READ and not doorman.writing
    return HELD if doorman.grants and not shared else AHEAD


def withdraw(
    doorman: Doorman, cmd: Withdraw, at: StepContext
) -> tuple[Doorman, StepContext, Withdrawn]:
    """Undo an acquire, whether it was granted, queued or never arrived.

    Return the new doorman, the context in which the step goes on, and the reply.
    """
    gone = tuple(g for t in cmd.tickets if (g := doorman.grant(t)) is not None)
    for ticket in cmd.tickets:
        doorman = _unpushed(doorman, ticket)
    doorman = drop_grants(doorman, gone)
    held = tuple(g.ticket for g in gone)
    if at.foreign is not None and at.foreign.ticket in cmd.tickets:
        # The doorman was lost; the ticket in the mutex record proves the grant
        # (test_withdraw_after_the_record_was_lost).
        held = (at.foreign.ticket,)
        at = replace(at, foreign=None)
    slot = doorman.upgrader
    if slot is not None and slot.ticket == cmd.upgrader:
        doorman = replace(doorman, upgrader=None)
    own = None if cmd.keep else doorman.entry(cmd.client_id, cmd.mode)
    if own is not None:
        doorman = replace(
            doorman, queue=tuple(p for p in doorman.queue if p is not own)
        )
    return doorman, at, Withdrawn(held)


def _unpushed(doorman: Doorman, ticket: str) -> Doorman:
    # A pushed grant that is given back is offered anew, to the client's other tasks.
    if doorman.has_pushed(ticket):
        queue = tuple(
            replace(p, claim_until=None) if p.ticket == ticket else p
            for p in doorman.queue
        )
        doorman = replace(doorman, queue=queue)
    return without_claim(doorman, ticket)


def _release(
    doorman: Doorman, cmd: Release, at: StepContext
) -> tuple[Doorman, StepContext, _ReleaseDraft]:
    grant = doorman.grant(cmd.ticket)
    turns = 0
    if grant is not None and cmd.mode in (None, grant.mode):
        held, turns = True, doorman.turns + 1
        doorman = drop_grants(confirmed(doorman, cmd.ticket), (grant,))
    elif at.foreign is not None and at.foreign.ticket == cmd.ticket:
        held = cmd.mode is not Mode.READ
        at = replace(at, foreign=None) if held else at
    else:
        held = False
    reason = "expired" if held else why_gone(doorman, holder_of(cmd.ticket))
    # Inside one process the mutex record goes from ticket to ticket without a gap. Once
    # in MAX_LOCAL_TURNS releases it is deleted until the process asks again: a foreign
    # program that polls with INSERT would starve otherwise
    # (test_after_a_hundred_turns_the_seat_is_vacated_once).
    vacate = turns > MAX_LOCAL_TURNS
    carried = replace(at, turns=0 if vacate else turns, vacate=vacate)
    answers: list[AcquireReply] = []
    for command in cmd.then:
        doorman, answer = acquire(doorman, command, carried)
        answers.append(answer)
    return doorman, at, _ReleaseDraft(held, reason, tuple(answers))


def _renew(
    doorman: Doorman, cmd: Renew, at: StepContext
) -> tuple[Doorman, StepContext, Renewed]:
    leases = dict(cmd.tickets)
    for ticket in leases:
        doorman = confirmed(doorman, ticket)
    renewed: dict[str, Grant] = {}
    for grant in doorman.grants:
        if grant.ticket in leases:
            lease, before = leases[grant.ticket], grant.expires
            if cmd.exact and lease is not None:
                before = at.now
            renewed[grant.ticket] = replace(
                grant, expires=longer(before, lease, at.now)
            )
    grants = tuple(renewed.get(g.ticket, g) for g in doorman.grants)
    outcomes: list[Grant | NotHeld] = [
        renewed.get(t) or NotHeld(why_gone(doorman, holder_of(t)))
        for t, _ in cmd.tickets
    ]
    at = without_own_record(at, leases.keys() - renewed.keys())
    return replace(doorman, grants=grants), at, Renewed(tuple(outcomes))


def _force(
    doorman: Doorman, cmd: ForceRelease, at: StepContext
) -> tuple[Doorman, StepContext, Forced]:
    if cmd.seat is not None:
        if at.foreign is None or at.foreign.value != cmd.seat:
            return doorman, at, Forced(done=False)
        return doorman, replace(at, foreign=None), Forced(done=True)
    for grant in doorman.grants:
        if grant.holder == cmd.holder and grant.fence == cmd.fence:
            doorman = drop_grants(doorman, (grant,))
            note = LossNote(grant.fence, grant.holder, "forced")
            return remember(doorman, note), at, Forced(done=True)
    return doorman, at, Forced(done=False)


def _reply(draft: _Draft, doorman: Doorman, at: StepContext) -> Reply:
    if isinstance(draft, MustWait):
        return _waiting(draft, doorman, at)
    if isinstance(draft, _ReleaseDraft):
        then: tuple[Answer, ...] = tuple(
            _waiting(reply, doorman, at) if isinstance(reply, MustWait) else reply
            for reply in draft.then
            if not isinstance(reply, NotHeld)  # none of them confirms
        )
        return Released(draft.held, draft.reason, then)
    return draft


def _waiting(queued: MustWait, doorman: Doorman, at: StepContext) -> Waiting:
    holders, foreign = describe_holders(doorman, at.foreign), at.foreign is not None
    entry = doorman.entry(queued.client_id, queued.mode)
    if entry is None:  # an upgrader, whose slot is not in the queue
        return Waiting(0, None, holders, at.now, foreign=foreign)
    ahead = sum(p.number < entry.number for p in doorman.queue)
    wait: int | None = 0  # the resource is offered to it right now
    if entry.claim_until is None:
        wait = _retry_after(doorman, entry, at.foreign, at.now)
    limit = 0
    if entry.mode is Mode.PERMIT:
        limit = limit_for(doorman, entry, at.now)
    return Waiting(ahead, wait, holders, at.now, limit, foreign)
