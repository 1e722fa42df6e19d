"""Whose turn it is: the rules of entry, in one place.

Phase-fair FIFO (``Policy.FAIR``):

* A writer enters an idle resource; of several waiting, the oldest.
* A reader joins a live read phase unless a writer waits.
* When a write phase ends, all readers waiting at that moment may enter
  (``admit_upto``) during one claim window, though a writer waits. The window opens
  (``admit_until``) when they can come: not under a foreign seat, not while barred.
* Whoever is offered the resource and does not come within its claim window, writer or
  reader, keeps its order but blocks nobody until it asks again (``QueueEntry.late``).

A place is a reservation, never a grant: only the owner's own round trip grants, so
that its lease is anchored at its own request (models LockLive V1, LeaseTime T6).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aiorwlock_remote.core.doorman import Doorman, MutexRecord, QueueEntry
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.value import replace


def may_enter(door: Doorman, place: QueueEntry, policy: Policy, now: int) -> bool:
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


def writers(door: Doorman, now: int) -> list[QueueEntry]:
    """Writer places that count: all but the late ones, oldest first."""
    return [p for p in door.queue if p.mode is Mode.WRITE and not p.missed_claim(now)]


def writer_waits(door: Doorman, now: int) -> bool:
    """Whether joining a read phase is closed; an upgrader closes it like a writer."""
    return door.upgrader is not None or bool(writers(door, now))


def is_admitted(door: Doorman, place: QueueEntry, now: int) -> bool:
    """Whether a reader may join though a writer waits."""
    open_now = not door.admit_until or now < door.admit_until
    return open_now and place.number <= door.admit_upto


def admitted(door: Doorman, now: int) -> list[QueueEntry]:
    """Reader places that a writer still lets pass before it."""
    readers = [p for p in door.queue if p.mode is Mode.READ and not p.missed_claim(now)]
    return [p for p in readers if is_admitted(door, p, now)]


def admit_waiting(door: Doorman) -> Doorman:
    """A write phase ended: all readers waiting at this moment may enter."""
    return replace(door, admit_upto=door.number, admit_until=0)


def settle(door: Doorman, now: int) -> Doorman:
    """What passing time made of it: readers behind writers that are gone may enter."""
    if door.writing or door.barred_until > now or writer_waits(door, now):
        return door
    for place in door.queue:  # no writers in it but late ones
        if not place.missed_claim(now) and not is_admitted(door, place, now):
            return admit_waiting(door)
    return door


def suspend(door: Doorman, now: int) -> Doorman:
    """A foreign program sits there: the window of the admitted opens anew after it."""
    return replace(door, admit_until=0) if door.admit_until > now else door


def retry_after(
    door: Doorman, place: QueueEntry, foreign: MutexRecord | None, now: int
) -> int | None:
    """Microseconds until something changes for this place with nobody's help."""
    if foreign is not None:
        return None if foreign.expires is None else max(0, foreign.expires - now)
    if door.barred_until > now:
        return door.barred_until - now
    if door.grants:  # a reader is told to wait beside readers if a writer waits
        return None if door.ends is None else max(0, door.ends - now)
    hints = [p.claim_until for p in writers(door, now) if p is not place]
    soon = [at - now for at in hints if at is not None]
    if door.admit_until > now and admitted(door, now):
        # A reader that was called but whose own policy lets the writer pass comes back
        # then, too: it is its step that offers the resource to the writer.
        soon.append(door.admit_until - now)
    return max(0, min(soon)) if soon else None


def offer(door: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    """Reserve what stands free for whose turn it is; the gates to be woken."""
    if door.writing or door.barred_until > now:
        return _unoffered(door, now, door.queue), ()
    door, woken = _open_window(settle(door, now), now)
    if door.grants:
        door = _unoffered(door, now, writers(door, now))
        if not admitted(door, now):
            door, woken = _call_upgrader(door)
        return door, woken
    if not admitted(door, now):
        return _offer_to_writer(door, now)
    return door, woken


def skip_entries(door: Doorman, gates: Collection[str], now: int) -> Doorman:
    """These processes were called and are known not to hear: late at once.

    Their places keep their order, as those of all who do not come.
    """

    def called(place: QueueEntry) -> bool:
        until = place.claim_until
        return place.client_id in gates and until is not None and until > now

    queue = tuple(replace(p, claim_until=now) if called(p) else p for p in door.queue)
    return replace(door, queue=queue)


def _open_window(door: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    """The admitted readers are called; who does not come in time is late."""
    called = [] if door.admit_until else admitted(door, now)
    if not called:
        return door, ()
    until = now + max(p.claim_window for p in called)
    queue = tuple(
        replace(p, claim_until=until) if p in called else p for p in door.queue
    )
    door = replace(door, admit_until=until, queue=queue)
    return door, tuple(p.client_id for p in called)


def _unoffered(door: Doorman, now: int, offered: Iterable[QueueEntry]) -> Doorman:
    """The resource is taken: whoever it was offered to is not late for that."""
    numbers = {
        p.number
        for p in offered
        if p.claim_until is not None and not p.missed_claim(now)
    }
    if not numbers:
        return door
    queue = tuple(
        replace(p, claim_until=None) if p.number in numbers else p for p in door.queue
    )
    return replace(door, queue=queue)


def _offer_to_writer(door: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    head = next(iter(writers(door, now)), None)
    if head is None or head.claim_until is not None:
        return door, ()
    offered = replace(head, claim_until=now + head.claim_window)
    queue = tuple(offered if p is head else p for p in door.queue)
    return replace(door, queue=queue), (head.client_id,)


def _call_upgrader(door: Doorman) -> tuple[Doorman, tuple[str, ...]]:
    slot = door.upgrader
    if slot is None or slot.called or len(door.grants) > 1:
        return door, ()
    return replace(door, upgrader=replace(slot, called=True)), (slot.client_id,)
