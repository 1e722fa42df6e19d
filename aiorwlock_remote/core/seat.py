"""The seat rules: what the published mutex record tells about our own grants.

* Equal to the value we wrote: ours.
* Missing, or another value, while grants are recorded: all of them are void and never
  come back. Gone at or after their recorded end: ``expired``; before it: ``forced``;
  another value there: ``stolen``. The queue and the last fence stay.
* A value we did not write is foreign: it keeps every mode out, is never joined and
  never taken over.
* Every step ends by making the seat agree with the record.
"""

from __future__ import annotations

from dataclasses import replace

from aiorwlock_remote.core.record import Ending, Grant, Record, Seat, seat_value
from aiorwlock_remote.core.ticket import READERS, Mode
from aiorwlock_remote.core.turn import admit_waiting
from aiorwlock_remote.errors import LossReason

MAX_ENDINGS = 8


def foreign_seat(door: Record, seat: Seat | None) -> Seat | None:
    """The seat, if it is not the one we wrote."""
    return seat if seat is not None and seat.value != door.seat else None


def reconcile(door: Record, seat: Seat | None, now: int) -> Record:
    """Void the recorded grants if the seat is not ours any more."""
    if not door.grants or (seat is not None and seat.value == door.seat):
        return door
    if seat is not None:
        return without_all(door, now, "stolen")
    ended = door.ends is not None and door.ends <= now
    return without_all(door, now, "expired" if ended else "forced")


def expire(door: Record, now: int) -> Record:
    """Drop grants, places and the upgrader's slot that have run out."""
    if any(g.dead(now) for g in door.grants):
        dead = [g for g in door.grants if g.dead(now)]
        bars = [(g.expires or 0) + g.lock_delay for g in dead if g.lock_delay]
        barred = max([door.barred_until, *bars])
        door = without(door, tuple(dead), now)
        door = replace(door, barred_until=barred)
    if any(p.expires <= now for p in door.queue):
        queue = tuple(p for p in door.queue if p.expires > now)
        door = replace(door, queue=queue)
    slot = door.upgrader
    if slot and (slot.expires <= now or door.grant(slot.ticket) is None):
        door = replace(door, upgrader=None)
    return door


def without(door: Record, gone: tuple[Grant, ...], now: int) -> Record:
    """Without these grants; the end of a write phase admits the waiting readers."""
    if not gone:
        return door
    left = tuple(g for g in door.grants if g not in gone)
    was_writing = door.writing
    door = replace(door, grants=left)
    return admit_waiting(door, now) if was_writing else door


def without_all(door: Record, now: int, reason: LossReason) -> Record:
    """Without any grant, remembering why."""
    if reason != "expired":
        door = remember(door, Ending(door.last, "*", reason))
    return replace(without(door, door.grants, now), upgrader=None)


def remember(door: Record, ending: Ending) -> Record:
    """Keep why a grant ended early, for the holder that asks later; the last few."""
    return replace(door, endings=(*door.endings, ending)[-MAX_ENDINGS:])


def why_gone(door: Record, holder: str) -> LossReason:
    """Why this holder has no grant; a lease that ran out needs no note."""
    for ending in reversed(door.endings):
        if ending.holder == holder:
            return ending.reason
    # A note for all holders of a phase names no ticket. Only the last phase's is taken:
    # of an older one the asker would have been told by its own renewals.
    if door.endings and door.endings[-1].holder == "*":
        return door.endings[-1].reason
    return "expired"


def agree(door: Record, foreign: Seat | None, wall: int) -> tuple[Record, Seat | None]:
    """The seat as it must stand after the step, and the record that names it."""
    if foreign is not None:
        return replace(door, seat=None, turns=0), foreign
    if not door.grants:
        return (door if door.seat is None else replace(door, seat=None)), None
    ticket = READERS if door.grants[0].mode is Mode.READ else door.grants[0].ticket
    if door.seat is None or Seat(door.seat).ticket != ticket:
        door = replace(door, seat=seat_value(door.grants, wall))
    assert door.seat is not None
    return door, Seat(door.seat, door.ends)
