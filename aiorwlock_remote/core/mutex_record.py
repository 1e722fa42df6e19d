"""The seat rules: what the published mutex record tells about our own grants.

* Equal to the value we wrote: ours.
* Missing, or another value, while live grants are recorded: all of them are void and
  never come back: ``forced`` if it is gone, ``stolen`` if another value is there. (A
  grant past its recorded end has ``expired``, whatever the seat tells.) The queue and
  the last fence stay.
* A value we did not write is foreign: it keeps every mode out, is never joined and
  never taken over.
* If the record was deleted under a holder, the seat looks foreign, and nobody but the
  holder can tell that it is ours. So whoever is told that its grant is gone (by a
  release, a withdrawal, a renewal or a move) and whose own ticket sits there takes it
  out, in the same step (model Seat, ``NoOrphan``).
* A reader's ticket never sits there. ``readers`` is ours only if the record says that
  we wrote that very value; the next step removes it if the record knows nobody who is
  in. Without a record, ``readers`` may be a foreign program's, which we must not take
  away (model Seat, ``NotRobbed``). It stays until the seat expires, where seats do, or
  until a person breaks it.
* Every step ends by making the seat agree with the record.
"""

from __future__ import annotations

from aiorwlock_remote.core.admission import admit_waiting
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    LossNote,
    MutexRecord,
    mutex_record_value,
    soonest_ending,
)
from aiorwlock_remote.core.ticket import READERS, Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import LossReason

MAX_LOSS_NOTES = 8
MAX_NAMED = 4


def foreign_seat(door: Doorman, seat: MutexRecord | None) -> MutexRecord | None:
    """The seat, if it is not the one we wrote."""
    return seat if seat is not None and seat.value != door.seat else None


def reconcile(door: Doorman, seat: MutexRecord | None) -> Doorman:
    """Void the live grants if the seat is not ours any more."""
    if not door.grants or (seat is not None and seat.value == door.seat):
        return door
    return without_all(door, "forced" if seat is None else "stolen")


def expire(door: Doorman, now: int) -> Doorman:
    """Drop grants, places and the upgrader's slot that have run out."""
    if any(g.dead(now) for g in door.grants):
        dead = [g for g in door.grants if g.dead(now)]
        bars = [(g.expires or 0) + g.lock_delay for g in dead if g.lock_delay]
        barred = max([door.barred_until, *bars])
        door = drop_grants(door, tuple(dead))
        door = replace(door, barred_until=barred)
    if any(p.expires <= now for p in door.queue):
        queue = tuple(p for p in door.queue if p.expires > now)
        door = replace(door, queue=queue)
    if door.upgrader and door.upgrader.expires <= now:
        door = replace(door, upgrader=None)
    return door


def drop_grants(door: Doorman, gone: tuple[Grant, ...]) -> Doorman:
    """Without these grants; the end of a write phase admits the waiting readers.

    Not if the writer was a reader that passed a writer still waiting: that one is next,
    or readers upgrading in turn would starve it (LockLive, ``drawn_upgrade_admits``).
    """
    if not gone:
        return door
    left = tuple(g for g in door.grants if g not in gone)
    was_writing, slot = door.writing, door.upgrader
    if slot and any(g.ticket == slot.ticket for g in gone):
        slot = None  # at once: a slot keeps readers out
    door = replace(door, grants=left, upgrader=slot)
    if not was_writing:
        return door
    if door.upgraded and any(p.mode is Mode.WRITE for p in door.queue):
        return replace(door, admit_upto=0, admit_until=0, upgraded=False)
    return replace(admit_waiting(door), upgraded=False)


def without_all(door: Doorman, reason: LossReason) -> Doorman:
    """Without any grant, remembering why; a crowd of readers in one note."""
    holders = ["*"]
    if len(door.grants) <= MAX_NAMED:
        holders = [g.holder for g in soonest_ending(door.grants, MAX_NAMED)]
    for holder in holders:
        door = remember(door, LossNote(door.last, holder, reason))
    return drop_grants(door, door.grants)


def remember(door: Doorman, ending: LossNote) -> Doorman:
    """Keep why a grant ended early, for the holder that asks later; the last few."""
    return replace(door, endings=(*door.endings, ending)[-MAX_LOSS_NOTES:])


def why_gone(door: Doorman, holder: str) -> LossReason:
    """Why this holder has no grant; a lease that ran out needs no note.

    A record that knows of no grant at all began anew: the one before was deleted.
    """
    for ending in reversed(door.endings):
        if ending.holder == holder:
            return ending.reason
    # A note for all holders of a phase names no ticket: who asks after the next phase
    # began may belong to that one.
    for ending in door.endings:
        if ending.holder == "*" and ending.fence == door.last:
            return ending.reason
    # Whoever was granted anything had a fence, which is kept for longer than a lease.
    return "expired" if door.last else "forced"


def sync_mutex_record(
    door: Doorman, foreign: MutexRecord | None, wall: int
) -> tuple[str | None, MutexRecord | None]:
    """Our seat value after the step (None: none), and the seat as it must stand."""
    if foreign is not None:
        return None, foreign
    if not door.grants:
        return None, None
    value = door.seat
    first = door.grants[0]
    ticket = READERS if first.mode is Mode.READ else first.ticket
    if value is None or MutexRecord(value).ticket != ticket:
        value = mutex_record_value(door.grants, wall)
    return value, MutexRecord(value, door.ends)
