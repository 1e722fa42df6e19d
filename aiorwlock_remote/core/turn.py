"""Whose turn it is: the rules of entry, in one place.

Phase-fair FIFO (``Policy.FAIR``):

* A writer enters an idle resource; of several waiting, the oldest.
* A reader joins a live read phase unless a writer waits.
* When a write phase ends, all readers waiting at that moment may enter
  (``admit_upto``) during one claim window, though a writer waits.
* Whoever is offered the resource and does not come within its claim window keeps its
  order but blocks nobody until it asks again (``Place.late``).

A place is a reservation, never a grant: only the owner's own round trip grants, so
that its lease is anchored at its own request (models LockLive V1, LeaseTime T6).
"""

from __future__ import annotations

from dataclasses import replace

from aiorwlock_remote.core.record import Place, Record, Seat
from aiorwlock_remote.core.ticket import Mode, Policy


def may_enter(door: Record, place: Place, policy: Policy, now: int) -> bool:
    """Whether the owner of this place may be granted now.

    ``place`` may be provisional: not in the queue, numbered past its tail.
    """
    if door.barred_until > now:
        return False
    if place.mode is Mode.WRITE:
        if door.grants:
            return False
        if policy is Policy.BARGE:
            return True
        if any(w.number < place.number for w in writers(door, now)):
            return False
        return policy is Policy.WRITER or not admitted(door, now)
    if door.writing:
        return False
    if policy is Policy.READER or not writer_waits(door, now):
        return True
    return policy is Policy.FAIR and is_admitted(door, place, now)


def writers(door: Record, now: int) -> list[Place]:
    """Writer places that count: all but the late ones, oldest first."""
    return [p for p in door.queue if p.mode is Mode.WRITE and not p.late(now)]


def writer_waits(door: Record, now: int) -> bool:
    """Whether joining a read phase is closed; an upgrader closes it like a writer."""
    return door.upgrader is not None or bool(writers(door, now))


def is_admitted(door: Record, place: Place, now: int) -> bool:
    """Whether a reader may join though a writer waits."""
    return place.number <= door.admit_upto and now < door.admit_until


def admitted(door: Record, now: int) -> list[Place]:
    """Reader places that a writer still lets pass before it."""
    if now >= door.admit_until:
        return []
    return [p for p in door.queue if p.mode is Mode.READ and is_admitted(door, p, now)]


def admit_waiting(door: Record, now: int) -> Record:
    """A write phase ended: all readers waiting at this moment may enter."""
    windows = [p.window for p in door.queue if p.mode is Mode.READ]
    if not windows:
        return replace(door, admit_upto=door.number, admit_until=0)
    return replace(door, admit_upto=door.number, admit_until=now + max(windows))


def retry_after(
    door: Record, place: Place, foreign: Seat | None, now: int
) -> int | None:
    """Microseconds until something changes for this place with nobody's help."""
    if foreign is not None:
        return None if foreign.expires is None else max(0, foreign.expires - now)
    if door.barred_until > now:
        return door.barred_until - now
    if door.grants and (place.mode is Mode.WRITE or door.writing):
        return None if door.ends is None else max(0, door.ends - now)
    hints = [p.claim_until for p in door.queue if p is not place and not p.late(now)]
    soon = [at - now for at in hints if at is not None]
    if place.mode is Mode.WRITE and admitted(door, now):
        soon.append(door.admit_until - now)
    if place.mode is Mode.READ and door.grants:  # joining is closed: a writer waits
        return None if door.ends is None else max(0, door.ends - now)
    return max(0, min(soon)) if soon else None


def offer(door: Record, now: int, before: Record) -> tuple[Record, tuple[str, ...]]:
    """Reserve what stands free for whose turn it is; the gates to be woken."""
    if door.writing or door.barred_until > now:
        return _unoffered(door, now), ()
    if not writer_waits(door, now) and _unadmitted(door):
        door = admit_waiting(door, now)
    woken: list[str] = []
    if door.admit_until > now and _admission(door) != _admission(before):
        woken += [p.gate for p in admitted(door, now)]
    if door.grants:
        door, called = _call_upgrader(_unoffered(door, now))
        return door, (*woken, *called)
    if not admitted(door, now):
        door, head = _offer_to_writer(door, now)
        woken += head
    return door, tuple(woken)


def _admission(door: Record) -> tuple[int, int]:
    return door.admit_upto, door.admit_until


def _unadmitted(door: Record) -> bool:
    return any(p.mode is Mode.READ and p.number > door.admit_upto for p in door.queue)


def _unoffered(door: Record, now: int) -> Record:
    """The resource is taken: whoever it was offered to is not late for that."""
    if not any(p.claim_until is not None and not p.late(now) for p in door.queue):
        return door
    queue = tuple(
        p if p.claim_until is None or p.late(now) else replace(p, claim_until=None)
        for p in door.queue
    )
    return replace(door, queue=queue)


def _offer_to_writer(door: Record, now: int) -> tuple[Record, tuple[str, ...]]:
    head = next(iter(writers(door, now)), None)
    if head is None or head.claim_until is not None:
        return door, ()
    offered = replace(head, claim_until=now + head.window)
    queue = tuple(offered if p is head else p for p in door.queue)
    return replace(door, queue=queue), (head.gate,)


def _call_upgrader(door: Record) -> tuple[Record, tuple[str, ...]]:
    slot = door.upgrader
    if slot is None or slot.called or len(door.grants) > 1:
        return door, ()
    return replace(door, upgrader=replace(slot, called=True)), (slot.gate,)
