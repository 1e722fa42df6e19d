"""The rules of a semaphore: which waiting client may take a permit, and how many.

* A resource has up to ``limit`` permits, which are given out in the order of arrival.
  The limit travels with each request, and is kept with each grant and queue entry. If
  limits differ, the least counts of those that hold a permit, of those that wait before
  the client, and its own: no holder has more company than its process allowed (model
  Permits, ``permits_own_limit``).
* What earlier queue entries wait for is not free (``permits_overtake``). An entry that
  was offered a permit and did not claim it within its claim window keeps its place, but
  reserves nothing until its client asks again.
* One request takes as many permits as are free for its client, one for each claim. If
  tasks are left, their entry goes to the tail, or a busy process would keep the
  semaphore to itself (``permits_stay``).
* Each permit has a fence of its own, greater than all before. Fences tell the order of
  permits, and cannot keep a holder out: holders do not exclude each other.
* A step offers a permit to each entry that may take one, and wakes its client. It never
  grants by a message.

A semaphore's resource has a type of its own (``names.semaphore``), so that a doorman
has either permits or readers and writers.
"""

from __future__ import annotations

import sys

from aiorwlock_remote.core.commands import AHEAD, BARRED, HELD, Acquire, Granted
from aiorwlock_remote.core.doorman import (
    Doorman,
    Grant,
    MutexRecord,
    QueueEntry,
    StepContext,
    new_fence,
)
from aiorwlock_remote.core.value import replace

MAX_LIMIT = 250
"""The greatest limit of a semaphore: so many grants fit into the smallest record that a
store has (test_the_greatest_limit_fits)."""


def limit_for(doorman: Doorman, entry: QueueEntry, now: int) -> int:
    """Return how many permits there are for the client of this queue entry."""
    limit = entry.limit
    for grant in doorman.grants:
        limit = min(limit, grant.limit)
    for other in _before(doorman, entry, now):
        limit = min(limit, other.limit)
    return limit


def free_permits(doorman: Doorman, entry: QueueEntry, now: int) -> int:
    """Return how many permits the client of this queue entry may take now.

    ``entry`` may be one that is not in the queue yet, with the next free number.
    """
    if doorman.barred_until > now:
        return 0
    reserved = sum(other.waiting for other in _before(doorman, entry, now))
    free = limit_for(doorman, entry, now) - len(doorman.grants) - reserved
    return max(0, free)


def take_permits(
    doorman: Doorman, cmd: Acquire, entry: QueueEntry, at: StepContext
) -> tuple[Doorman, Granted] | None:
    """Grant as many claims of ``cmd`` as permits are free for its queue entry.

    Return None if no permit is free. ``entry``: the one of the client, in the queue or
    to be; the tasks that are left get a new one at the tail.
    """
    asking = [c for c in cmd.claims if doorman.grant(c.ticket) is None]
    free = 0 if at.foreign is not None else free_permits(doorman, entry, at.now)
    taken = min(free, len(asking))
    if taken == 0:
        return None
    fence = new_fence(doorman, at.floor)
    grants = doorman.grants + tuple(
        claim.grant(cmd.mode, fence + index, at.now, cmd.limit)
        for index, claim in enumerate(asking[:taken])
    )
    queue = tuple(p for p in doorman.queue if p.number != entry.number)
    number, left = doorman.number, len(asking) - taken + cmd.more
    placed = left > 0 and cmd.may_queue
    if placed:
        number += 1
        behind = cmd.entry_behind(entry, number, at.now)
        first = asking[taken] if taken < len(asking) else cmd.claims[0]
        queue = (*queue, replace(behind, waiting=left, who=first.who))
    doorman = replace(
        doorman, last=fence + taken - 1, grants=grants, queue=queue, number=number
    )
    return doorman, Granted(_granted(doorman, cmd), at.now, placed=placed)


def why_refused(doorman: Doorman, entry: QueueEntry, at: StepContext) -> str:
    """Return why the client of this queue entry may take no permit."""
    if at.foreign is not None:
        return HELD
    if doorman.barred_until > at.now:
        return BARRED
    full = limit_for(doorman, entry, at.now) <= len(doorman.grants)
    return HELD if full else AHEAD


def next_permit(
    doorman: Doorman, entry: QueueEntry, foreign: MutexRecord | None, now: int
) -> int | None:
    """Return after how many microseconds an expiry may free a permit for this entry.

    What expires may be a grant, an earlier entry's claim window, a lock delay, or
    ``foreign``, the mutex record that another program wrote. None: nothing does.
    """
    if foreign is not None:
        return None if foreign.expires is None else max(0, foreign.expires - now)
    if doorman.barred_until > now:
        return doorman.barred_until - now
    ends = [g.expires for g in doorman.grants if g.expires is not None]
    ends += [
        other.claim_until
        for other in _before(doorman, entry, now)
        if other.claim_until is not None
    ]
    return max(0, min(ends) - now) if ends else None


def offer_permits(doorman: Doorman, now: int) -> tuple[Doorman, tuple[str, ...]]:
    """Reserve the free permits for the queue entries whose turn it is.

    Return the new doorman, and the ids of the clients to wake because of it.
    """
    limit = min((grant.limit for grant in doorman.grants), default=sys.maxsize)
    barred, reserved = doorman.barred_until > now, len(doorman.grants)
    queue: list[QueueEntry] = []
    woken: list[str] = []
    for entry in doorman.queue:
        until = entry.claim_until
        if not entry.missed_claim(now):
            limit = min(limit, entry.limit)
            if barred or limit <= reserved:
                # A permit that was offered is taken: the entry did not miss its claim,
                # and would get a doubled window for nothing.
                until = None
            elif until is None:
                until = now + entry.claim_window
                woken.append(entry.client_id)
            reserved += entry.waiting
        same = until == entry.claim_until
        queue.append(entry if same else replace(entry, claim_until=until))
    return replace(doorman, queue=tuple(queue)), tuple(woken)


def _before(doorman: Doorman, entry: QueueEntry, now: int) -> list[QueueEntry]:
    return [
        other
        for other in doorman.queue
        if other.number < entry.number and not other.missed_claim(now)
    ]


def _granted(doorman: Doorman, cmd: Acquire) -> tuple[Grant, ...]:
    found = (doorman.grant(claim.ticket) for claim in cmd.claims)
    return tuple(grant for grant in found if grant is not None)
