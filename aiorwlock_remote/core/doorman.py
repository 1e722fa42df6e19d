"""The doorman: what a store keeps besides the published mutex record of a resource.

The *mutex record* (in code ``seat``, the field's name in stored JSON) is published:
while the resource is held, it contains a ticket or a word: ``readers``, or ``permits``
for a semaphore. The doorman contains the holders, the queue and the last fence. A step
changes both together, atomically.

All times are microseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field
from heapq import nsmallest

from aiorwlock_remote.core.ticket import PERMITS, READERS, Mode, holder_of
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason

# Grants passed on, in one process or pushed, until the mutex record is deleted once.
MAX_LOCAL_TURNS = 100

# Fields of a newer version that this one does not know, but keeps.
Extra = tuple[tuple[str, object], ...]


@value
class Requester:
    """Description of a client (host, pid, task, reason), only ever shown to people."""

    host: str = ""
    pid: int = 0
    task: str = ""
    reason: str = ""

    def __str__(self) -> str:
        entry = f"{self.host}/{self.pid}" if self.host or self.pid else "?"
        return f"{entry}: {self.reason}" if self.reason else entry


UNKNOWN_REQUESTER = Requester()


@value
class Grant:
    """A holder's right to the resource, as it is stored.

    ``since`` and ``expires``: microseconds of the store's clock; None: never.
    ``lock_delay``: for how many microseconds after ``expires`` no client may enter.
    ``limit``: of a permit: how many permits its holder allows beside and with its own.
    """

    ticket: str = field(repr=False)
    mode: Mode
    fence: int
    since: int
    expires: int | None
    who: Requester = UNKNOWN_REQUESTER
    lock_delay: int = 0
    limit: int = 0
    extra: Extra = ()

    @property
    def holder(self) -> str:
        return holder_of(self.ticket)

    def dead(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now


@value
class QueueEntry:
    """Place of one client in the queue, in one mode, however many of its tasks wait.

    Attributes:
        claim_until: End of the time for which the resource is reserved for this entry,
            or None. A client that has not claimed by then keeps its place, but blocks
            no other until it asks again.
        expires: When the entry is dropped unless its client asks before.
        claim_window: For how many microseconds the resource is reserved for this entry.
        ticket, lease: What a step grants when it offers the resource to this entry: a
            *pushed* grant. No ticket: such a step only wakes the client.
        limit: How many permits of a semaphore its client allows; 0 for a lock.
    """

    number: int
    client_id: str
    mode: Mode
    since: int
    expires: int
    claim_window: int
    waiting: int = 1
    claim_until: int | None = None
    who: Requester = UNKNOWN_REQUESTER
    ticket: str = field(default="", repr=False)
    lease: int = 0
    limit: int = 0
    extra: Extra = ()

    def missed_claim(self, now: int) -> bool:
        """Return True if the entry was offered the resource, but its window is over."""
        return self.claim_until is not None and self.claim_until <= now

    def pushed_grant(self, fence: int, now: int) -> Grant:
        """Return the grant that an offer at ``now`` pushes to this entry, which has a
        ticket: for one claim window, or the lease if that is shorter.
        """
        until = now + min(self.claim_window, self.lease)
        return Grant(self.ticket, Mode.WRITE, fence, now, until, self.who)


@value
class PendingUpgrade:
    """The one reader that waits to upgrade until all other readers have left."""

    ticket: str = field(repr=False)
    client_id: str
    expires: int
    called: bool = False


@value
class LossNote:
    """Note why a grant ended early, for its holder to read.

    ``holder``: the holder's public id, or "*" for all holders with this fence.
    """

    fence: int
    holder: str
    reason: LossReason


@value
class MutexRecord:
    """The mutex record of a resource: its text in the store, and when it expires."""

    value: str = field(repr=False)
    expires: int | None = None

    @property
    def ticket(self) -> str:
        """The part of the value before the comma: a ticket, or ``readers``."""
        return self.value.rpartition(",")[0] or self.value


@value
class Doorman:
    """Stored state of one resource, apart from its mutex record.

    ``Doorman()`` is the state of a resource that was never used.

    Attributes:
        last: The last fence given out; readers of one phase share it.
        number: The last number given to a queue entry.
        admit_upto: Readers with an entry up to this number may pass waiting writers.
        admit_until: End of that permission; 0 if its window has not been opened yet.
        seat: The value we wrote to the mutex record, to tell it from another program's.
        turns: How often in a row the resource was passed on, to a task of the same
            client or by a pushed grant, without deleting the mutex record in between.
        barred_until: Until then no client may enter (a ``lock_delay`` after an expiry).
        upgraded: Whether the writer was a reader before, and so passed the queue.
        pushed: Whether the writer has its grant from an offer, and has not confirmed
            it. Until it does the grant lasts for one claim window only, and its queue
            entry stays.
        endings: Why recent grants ended early.
        created, updated: Wall clock at the first and the last step, shown to people.
    """

    last: int = 0
    grants: tuple[Grant, ...] = ()
    queue: tuple[QueueEntry, ...] = ()
    number: int = 0
    admit_upto: int = 0
    admit_until: int = 0
    seat: str | None = field(default=None, repr=False)
    turns: int = 0
    barred_until: int = 0
    upgrader: PendingUpgrade | None = None
    upgraded: bool = False
    pushed: bool = False
    endings: tuple[LossNote, ...] = ()
    created: int = 0
    updated: int = 0
    extra: Extra = ()

    @property
    def writing(self) -> bool:
        return bool(self.grants) and self.grants[0].mode is Mode.WRITE

    @property
    def has_permits(self) -> bool:
        """Whether this is a semaphore's: permits are held or waited for, so that the
        rules of ``core/permits.py`` apply.
        """
        held_or_waited_for = self.grants or self.queue
        return bool(held_or_waited_for) and held_or_waited_for[0].mode is Mode.PERMIT

    def has_pushed(self, ticket: str) -> bool:
        """Return True if the ticket has a pushed grant that is not confirmed."""
        return self.pushed and self.grants[0].ticket == ticket

    def grant(self, ticket: str) -> Grant | None:
        for grant in self.grants:
            if grant.ticket == ticket:
                return grant
        return None

    def entry(self, client_id: str, mode: Mode) -> QueueEntry | None:
        for entry in self.queue:
            if entry.client_id == client_id and entry.mode is mode:
                return entry
        return None

    @property
    def ends(self) -> int | None:
        """When the last grant expires; None if one never does, or if none is held."""
        ends = 0
        for grant in self.grants:
            if grant.expires is None:
                return None
            ends = max(ends, grant.expires)
        return ends or None

    def after_reboot(self) -> Doorman:
        """Return the doorman without holders and queue; the last fence is kept."""
        # A host's clock restarts at a boot, so the ends of leases mean nothing then
        # (test_another_boot_ends_everything_but_the_fence).
        return replace(
            self, grants=(), queue=(), upgrader=None, admit_until=0, barred_until=0
        )


UNUSED_DOORMAN: Doorman = Doorman()


def soonest_ending(grants: tuple[Grant, ...], count: int) -> list[Grant]:
    """Return the ``count`` grants that expire first, in order; endless ones last."""

    def order(grant: Grant) -> tuple[bool, int, str]:
        return grant.expires is None, grant.expires or 0, grant.ticket

    return nsmallest(count, grants, key=order)


def mutex_record_value(grants: tuple[Grant, ...], wall: int) -> str:
    """Return a mutex record's text: published ticket, comma, Unix seconds."""
    return f"{published_ticket(grants)},{wall // 1_000_000}"


def published_ticket(grants: tuple[Grant, ...]) -> str:
    """Return what stands in the mutex record: the writer's ticket, or a word for
    holders that share the resource.
    """
    first = grants[0]
    if first.mode is Mode.WRITE:
        return first.ticket
    return READERS if first.mode is Mode.READ else PERMITS


MAX_SHOWN_HOLDERS = 5


@value
class StepContext:
    """Circumstances in which one command is applied to a doorman.

    Attributes:
        now: Microseconds of the store's clock.
        floor: The lowest fence that a new phase may get.
        foreign: The mutex record if another program wrote it, else None.
        turns: New ``Doorman.turns`` if a client enters an idle resource.
        vacate: Let no client enter, so that other programs see the mutex record
            deleted.
    """

    now: int
    floor: int
    foreign: MutexRecord | None
    turns: int = 0
    vacate: bool = False


def without_own_record(at: StepContext, tickets: Container[str]) -> StepContext:
    """Return the context with ``foreign`` set to None if it has one of the tickets.

    Such a mutex record is not another program's: the doorman was lost.
    """
    foreign = at.foreign
    if foreign is None or foreign.ticket not in tickets:
        return at
    return replace(at, foreign=None)


def new_fence(doorman: Doorman, floor: int) -> int:
    """Return a new phase's fence: above all earlier fences, and at least ``floor``."""
    return max(doorman.last + 1, floor)


def describe_holders(doorman: Doorman, foreign: MutexRecord | None) -> tuple[str, ...]:
    """Return a text about each holder, for people: mode, holder, process, reason.

    ``foreign``: another program's mutex record; then only its holder is described.
    """
    if foreign is not None:
        return (f"foreign {holder_of(foreign.ticket)}",)
    return describe_grants(doorman.grants)


def describe_grants(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    """Return texts about the first few grants to expire: mode, holder, process."""
    shown = soonest_ending(grants, MAX_SHOWN_HOLDERS)
    return tuple(f"{grant.mode} {grant.holder} {grant.who}" for grant in shown)
