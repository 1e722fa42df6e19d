"""The rules of admission: which waiting client may be granted a resource next.

Phase-fair FIFO (``Policy.FAIR``):

* A writer enters an idle resource; if several wait, the oldest.
* A reader joins a live read phase unless a writer waits.
* When a write phase ends, all readers waiting at that moment may enter (``admit_upto``)
  during one claim window, even if a writer waits. The window (``admit_until``) does not
  open while another program holds the mutex record, nor during a lock delay.
* If a client is offered the resource and does not claim it within its claim window, its
  entry keeps its order, but blocks no other entry until the client asks again
  (``QueueEntry.missed_claim``).

A queue entry is a reservation. As a rule only the client's own request grants, so that
the lease is counted from that request (models LockLive V1, LeaseTime T6). The exception
is a writer's entry with a ticket: its offer is a *pushed* grant, for one claim window,
which a message reports to the client. The client counts it from an earlier request of
its own, and confirms it by another one (model PushedGrant, LockLive ``push_*``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aiorwlock_remote.core.doorman import (
    MAX_LOCAL_TURNS,
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
    new_fence,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.value import replace


def may_enter(doorman: Doorman, entry: QueueEntry, policy: Policy, now: int) -> bool:
    """Return True if the client of this queue entry may be granted the resource now.

    ``entry`` may be one that is not in the queue yet, with the next free number.
    ``policy``: the client's own. ``now``: microseconds of the store's clock.
    """
    if doorman.barred_until > now:
        return False
    if entry.mode is Mode.WRITE:
        if doorman.grants:
            return False
        if policy is Policy.BARGE:
            return True
        # A writer passes no earlier one
        # (test_an_acquire_carried_by_a_release_overtakes_nobody), except late ones: a
        # dead process at the head of the queue would block all others for as long as
        # its entry lives (test_a_late_head_keeps_its_order).
        if any(w.number < entry.number for w in writers(doorman, now)):
            return False
        return policy is Policy.WRITER or not admitted(doorman, now)
    if doorman.writing:
        return False
    if policy is Policy.READER or not writer_waits(doorman, now):
        return True
    return policy is Policy.FAIR and is_admitted(doorman, entry, now)


def writers(doorman: Doorman, now: int) -> list[QueueEntry]:
    """Return the queue entries of waiting writers, oldest first.

    Left out is a writer that was offered the resource and did not claim it in time.
    """
    return [
        p for p in doorman.queue if p.mode is Mode.WRITE and not p.missed_claim(now)
    ]


def writer_waits(doorman: Doorman, now: int) -> bool:
    """Return True if a waiting writer or upgrading reader keeps new readers out."""
    # A waiting upgrader closes it as a writer does, or readers that keep joining would
    # starve it (test_an_upgrader_closes_joining).
    return doorman.upgrader is not None or bool(writers(doorman, now))


def is_admitted(doorman: Doorman, entry: QueueEntry, now: int) -> bool:
    """Return True if the reader with this queue entry may enter before waiting writers.

    A reader that waited when a write phase ended may, during one claim window.
    """
    # Without ``admit_until`` a dead reader would block the next writer for ever
    # (test_the_window_of_the_admitted_closes).
    open_now = not doorman.admit_until or now < doorman.admit_until
    return open_now and entry.number <= doorman.admit_upto


def admitted(doorman: Doorman, now: int) -> list[QueueEntry]:
    """Return the entries of readers that may enter before waiting writers.

    Left out is a reader that was offered the resource and did not claim it in time.
    """
    readers = [
        p for p in doorman.queue if p.mode is Mode.READ and not p.missed_claim(now)
    ]
    return [p for p in readers if is_admitted(doorman, p, now)]


def admit_waiting(doorman: Doorman) -> Doorman:
    """Allow all readers in the queue to pass waiting writers, after a write phase."""
    return replace(doorman, admit_upto=doorman.number, admit_until=0)


def settle(doorman: Doorman, now: int) -> Doorman:
    """Let the waiting readers enter if no writer holds the resource or may claim it.

    A writer that did not claim the resource in time may not claim it. If there is a
    writer, return the doorman unchanged.
    """
    if doorman.writing or doorman.barred_until > now or writer_waits(doorman, now):
        return doorman
    for entry in doorman.queue:  # its writers have all missed their claim
        if not entry.missed_claim(now) and not is_admitted(doorman, entry, now):
            return admit_waiting(doorman)
    return doorman


def suspend(doorman: Doorman, now: int) -> Doorman:
    """Close the readers' claim window; it is opened anew by a later ``offer``.

    For the time in which another program holds the resource.
    """
    return replace(doorman, admit_until=0) if doorman.admit_until > now else doorman


def retry_after(
    doorman: Doorman, entry: QueueEntry, foreign: MutexRecord | None, now: int
) -> int | None:
    """Return after how many microseconds an expiry may let this entry's client enter.

    What expires may be a grant, a claim window, a lock delay, or ``foreign``, the mutex
    record that another program wrote. None: what blocks the entry does not expire.
    """
    if foreign is not None:
        return None if foreign.expires is None else max(0, foreign.expires - now)
    if doorman.barred_until > now:
        return doorman.barred_until - now
    if doorman.grants:  # also for a reader that a waiting writer keeps from joining
        return None if doorman.ends is None else max(0, doorman.ends - now)
    hints = [p.claim_until for p in writers(doorman, now) if p is not entry]
    soon = [at - now for at in hints if at is not None]
    if doorman.admit_until > now and admitted(doorman, now):
        # A called reader whose own policy lets the writer pass must come back as well:
        # only its step offers the resource to the writer
        # (test_a_called_reader_that_lets_pass_comes_back).
        soon.append(doorman.admit_until - now)
    return max(0, min(soon)) if soon else None


def offer(
    doorman: Doorman, now: int, floor: int | None = None
) -> tuple[Doorman, tuple[str, ...]]:
    """Reserve a free resource for the queue entries whose turn it is.

    Return the new doorman, and the ids of the clients to wake because of it. ``floor``:
    the lowest fence of a pushed grant; None: push none.
    """
    if doorman.writing or doorman.barred_until > now:
        return _unoffered(doorman, now, doorman.queue), ()
    doorman, woken = _open_window(settle(doorman, now), now)
    if doorman.grants:
        doorman = _unoffered(doorman, now, writers(doorman, now))
        if not admitted(doorman, now):
            doorman, woken = _call_upgrader(doorman)
        return doorman, woken
    if not admitted(doorman, now):
        return _offer_to_writer(doorman, now, floor)
    return doorman, woken


def newly_pushed(doorman: Doorman, wakes: Collection[str]) -> Grant | None:
    """Return the grant that a step pushed; None if it pushed none.

    ``wakes``: the clients that its ``offer`` returned.
    """
    # A step that leaves an earlier pushed grant as it is offers nothing.
    return doorman.grants[0] if doorman.pushed and wakes else None


def skip_entries(doorman: Doorman, client_ids: Collection[str], now: int) -> Doorman:
    """Let the offers to these clients count as missed, because no wake-up reaches them.

    A later ``offer`` then passes the resource on to other clients.
    """
    called = [
        p
        for p in doorman.queue
        if p.client_id in client_ids
        and p.claim_until is not None
        and p.claim_until > now
    ]
    return _set_claims(doorman, called, now)


def _open_window(doorman: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    # A reader that does not come within the longest claim window of them all is late,
    # and delays the next writer no longer (test_a_dead_reader_costs_one_window).
    called = [] if doorman.admit_until else admitted(doorman, now)
    if not called:
        return doorman, ()
    until = now + max(p.claim_window for p in called)
    doorman = replace(_set_claims(doorman, called, until), admit_until=until)
    return doorman, tuple(p.client_id for p in called)


def _unoffered(doorman: Doorman, now: int, offered: Iterable[QueueEntry]) -> Doorman:
    # The resource is held again before the claim came. The entries did not miss their
    # claim, and would get a doubled window for nothing.
    early = [
        p
        for p in offered
        if p.claim_until is not None
        and not p.missed_claim(now)
        and not doorman.has_pushed(p.ticket)
    ]
    return _set_claims(doorman, early, None) if early else doorman


def _offer_to_writer(
    doorman: Doorman, now: int, floor: int | None
) -> tuple[Doorman, tuple[str, ...]]:
    head = next(iter(writers(doorman, now)), None)
    if head is None or head.claim_until is not None:
        return doorman, ()
    woken = (head.client_id,)
    # A mutex record that is never deleted would starve a foreign program that polls
    # with INSERT (test_after_a_hundred_pushed_grants_the_seat_is_vacated_once).
    if floor is None or not head.ticket or doorman.turns >= MAX_LOCAL_TURNS:
        return _set_claims(doorman, [head], now + head.claim_window), woken
    fence = new_fence(doorman, floor)
    grant = head.pushed_grant(fence, now)
    doorman = replace(
        _set_claims(doorman, [head], grant.expires),
        last=fence,
        grants=(grant,),
        turns=doorman.turns + 1,
        upgraded=False,
        pushed=True,
    )
    return doorman, woken


def _set_claims(
    doorman: Doorman, entries: Iterable[QueueEntry], until: int | None
) -> Doorman:
    numbers = {p.number for p in entries}
    queue = tuple(
        replace(p, claim_until=until) if p.number in numbers else p
        for p in doorman.queue
    )
    return replace(doorman, queue=queue)


def _call_upgrader(doorman: Doorman) -> tuple[Doorman, tuple[str, ...]]:
    slot = doorman.upgrader
    if slot is None or slot.called or len(doorman.grants) > 1:
        return doorman, ()
    return replace(doorman, upgrader=replace(slot, called=True)), (slot.client_id,)
