"""The rules of the published mutex record: what its value means for our own grants.

* The value we wrote: the grants are ours.
* No record, or another value, while live grants are stored: all grants are void for
  good. The reason is ``forced`` if the record is gone, ``stolen`` if it has another
  value. (A grant past its stored end has ``expired`` in any case.) The queue and the
  last fence stay.
* A value that another program wrote (``foreign``) keeps every mode out, is never joined
  and never taken over.
* If the doorman was deleted while a client held a lock, the mutex record looks foreign,
  and only the holder's ticket proves that it is ours. So a release, withdrawal, renewal
  or move that answers "not held" removes the record if the asking client's own ticket
  is in it, in the same step (model Seat, ``NoOrphan``).
* While readers hold the resource, the record contains ``readers`` and no ticket. It is
  ours only if the doorman says that we wrote that very value; the next step removes it
  when no reader is left. Without a doorman, ``readers`` may be another program's (model
  Seat, ``NotRobbed``): it stays until it expires, in stores whose records do, or until
  a person breaks it.
* The word ``permits`` in the record of a semaphore is never another program's, as no
  published layout has semaphores. If it is not the value that the doorman says we
  wrote, the doorman was lost: the next step removes it
  (test_permits_without_a_doorman_are_taken_out).
* Every step ends by making the mutex record agree with the doorman.
"""

from __future__ import annotations

from aiorwlock_remote.core.admission import admit_waiting
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    mutex_record_value,
    published_ticket,
    soonest_ending,
)
from aiorwlock_remote.core.ticket import PERMITS, Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import LossReason

MAX_LOSS_NOTES = 8
# Holders that get a note of their own when all grants are voided.
MAX_NAMED = 4


def foreign_seat(
    doorman: Doorman, seat: MutexRecord | None, *, semaphore: bool
) -> MutexRecord | None:
    """Return the stored mutex record ``seat`` if another program's, else None."""
    if seat is None or seat.value == doorman.seat:
        return None
    # Written by this library, for a doorman that was lost.
    left_behind = semaphore and seat.ticket == PERMITS
    return None if left_behind else seat


def reconcile(doorman: Doorman, seat: MutexRecord | None) -> Doorman:
    """Remove all grants if ``seat``, the stored mutex record, is not the one we wrote.

    Notes why each holder lost its grant: ``forced`` if missing, else ``stolen``.
    """
    if not doorman.grants or (seat is not None and seat.value == doorman.seat):
        return doorman
    # One note for many readers: the doorman must stay small
    # (test_the_loss_of_many_readers_is_one_note).
    holders = ["*"]
    if len(doorman.grants) <= MAX_NAMED:
        holders = [g.holder for g in soonest_ending(doorman.grants, MAX_NAMED)]
    reason: LossReason = "forced" if seat is None else "stolen"
    for holder in holders:
        doorman = remember(doorman, LossNote(doorman.last, holder, reason))
    return drop_grants(doorman, doorman.grants)


def expire(doorman: Doorman, now: int) -> Doorman:
    """Remove the grants, queue entries and pending upgrade that have expired."""
    if any(g.dead(now) for g in doorman.grants):
        dead = [g for g in doorman.grants if g.dead(now)]
        bars = [(g.expires or 0) + g.lock_delay for g in dead if g.lock_delay]
        barred = max([doorman.barred_until, *bars])
        doorman = drop_grants(doorman, tuple(dead))
        doorman = replace(doorman, barred_until=barred)
    if any(p.expires <= now for p in doorman.queue):
        queue = tuple(p for p in doorman.queue if p.expires > now)
        doorman = replace(doorman, queue=queue)
    if doorman.upgrader and doorman.upgrader.expires <= now:
        doorman = replace(doorman, upgrader=None)
    return doorman


def drop_grants(doorman: Doorman, gone: tuple[Grant, ...]) -> Doorman:
    """Remove these grants; if a write phase ends, let waiting readers enter next."""
    if not gone:
        return doorman
    left = tuple(g for g in doorman.grants if g not in gone)
    was_writing, slot = doorman.writing, doorman.upgrader
    if slot and any(g.ticket == slot.ticket for g in gone):
        # Not at the next step: until then the slot would keep readers out, and no
        # wake-up would come (LockLive, ``drawn_slot_lingers``).
        slot = None
    doorman = replace(doorman, grants=left, upgrader=slot)
    if not was_writing:
        return doorman
    if doorman.pushed:
        # No client wrote, so no write phase ends. Otherwise a dead entry at the head of
        # the queue would let readers pass the writer behind it each time (LockLive,
        # ``push_is_phase``).
        return without_claim(replace(doorman, pushed=False), gone[0].ticket)
    # The writer was a reader that passed a waiting writer: that one is next, or readers
    # upgrading in turn would starve it (LockLive, ``drawn_upgrade_admits``).
    if doorman.upgraded and any(p.mode is Mode.WRITE for p in doorman.queue):
        return replace(doorman, admit_upto=0, admit_until=0, upgraded=False)
    return replace(admit_waiting(doorman), upgraded=False)


def confirmed(doorman: Doorman, ticket: str) -> Doorman:
    """Return the doorman when a command shows that the holder of this ticket uses its
    grant. If the grant was pushed, it is one like any other from now on, and its queue
    entry is that of the client's other tasks.
    """
    if not doorman.has_pushed(ticket):
        return doorman
    queue = tuple(
        replace(p, ticket="", lease=0, claim_until=None, waiting=p.waiting - 1)
        if p.ticket == ticket
        else p
        for p in doorman.queue
        if p.ticket != ticket or p.waiting > 1
    )
    return replace(doorman, pushed=False, queue=queue, admit_upto=0, admit_until=0)


def longer(expires: int | None, lease: int | None, now: int) -> int | None:
    """Return the end of a grant that is renewed or confirmed; None: it has no end.

    Never an earlier end: the holder may rely on the one it was promised.
    """
    if expires is None or lease is None:
        return None
    return max(expires, now + lease)


def without_claim(doorman: Doorman, ticket: str) -> Doorman:
    """Return the doorman without the ticket in its queue: it is not to be pushed."""
    # A ticket is pushed once. Twice, with two fences, its client could enter by the
    # first message when the second grant is the live one.
    if not any(p.ticket == ticket for p in doorman.queue):
        return doorman
    queue = tuple(
        replace(p, ticket="", lease=0) if p.ticket == ticket else p
        for p in doorman.queue
    )
    return replace(doorman, queue=queue)


def remember(doorman: Doorman, ending: LossNote) -> Doorman:
    """Add a note why a grant ended early, which its holder may ask for later."""
    return replace(doorman, endings=(*doorman.endings, ending)[-MAX_LOSS_NOTES:])


def why_gone(doorman: Doorman, holder: str) -> LossReason:
    """Return why this holder has no grant, from the notes about early endings.

    Without a note: "expired"; "forced" if the doorman has no fence, so was deleted.
    """
    for ending in reversed(doorman.endings):
        if ending.holder == holder:
            return ending.reason
    # A note for all holders of a phase names none of them. A holder that asks after the
    # next phase began may belong to that phase, so the note must not answer it
    # (test_the_loss_of_many_readers_is_one_note).
    for ending in doorman.endings:
        if ending.holder == "*" and ending.fence == doorman.last:
            return ending.reason
    # Every grant had a fence, and the doorman keeps it for longer than a lease. Without
    # one the former doorman was deleted (test_a_record_that_was_deleted).
    return "expired" if doorman.last else "forced"


def sync_mutex_record(
    doorman: Doorman, foreign: MutexRecord | None, wall: int
) -> tuple[str | None, MutexRecord | None]:
    """Return the new text of ``Doorman.seat``, and the mutex record to store.

    The record None means: delete it. ``foreign``: another program's mutex record,
    which stays as it is; None: there is none.
    ``wall``: microseconds of the store's wall clock.
    """
    if foreign is not None:
        return None, foreign
    if not doorman.grants:
        return None, None
    value = doorman.seat
    ticket = published_ticket(doorman.grants)
    if value is None or MutexRecord(value).ticket != ticket:
        value = mutex_record_value(doorman.grants, wall)
    return value, MutexRecord(value, doorman.ends)
