"""The doorman: what a store keeps beside the published mutex record of a resource.

The *mutex record* (in code ``seat``, the field's name in stored JSON) is published:
while the resource is held, it contains a ticket or the word ``readers``. The doorman
knows the rest: the holders, the queue and the last fence. A step changes both together,
atomically.

All times are microseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field
from heapq import nsmallest

from aiorwlock_remote.core.ticket import READERS, Mode, holder_of
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason

# Fields of a newer version that this one does not know, but keeps.
Extra = tuple[tuple[str, object], ...]


@value
class Requester:
    """Description of a client, shown to people and never used for decisions."""

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
    """One holder's right to the resource; ``expires`` is None for an endless lease."""

    ticket: str = field(repr=False)
    mode: Mode
    fence: int
    since: int
    expires: int | None
    who: Requester = UNKNOWN_REQUESTER
    lock_delay: int = 0
    extra: Extra = ()

    @property
    def holder(self) -> str:
        return holder_of(self.ticket)

    def dead(self, now: int) -> bool:
        """Return whether the lease has run out."""
        return self.expires is not None and self.expires <= now


@value
class QueueEntry:
    """One client waiting in one mode, however many of its tasks wait.

    Attributes:
        claim_until: End of the offer, while the resource is reserved for this entry. If
            the client has not claimed by then, the entry keeps its order, but blocks no
            other until its client asks again.
        expires: When the entry is dropped unless its client asks before.
        claim_window: How long an offer to this entry lasts.
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
    extra: Extra = ()

    def missed_claim(self, now: int) -> bool:
        """Return whether the resource was offered and not claimed in time."""
        return self.claim_until is not None and self.claim_until <= now


@value
class PendingUpgrade:
    """The one reader that waits for the other readers to leave."""

    ticket: str = field(repr=False)
    client_id: str
    expires: int
    called: bool = False


@value
class LossNote:
    """Why grants of one fence ended early; holder "*" stands for all of that fence."""

    fence: int
    holder: str
    reason: LossReason


@value
class MutexRecord:
    """The published mutex record as it stands in the store."""

    value: str = field(repr=False)
    expires: int | None = None

    @property
    def ticket(self) -> str:
        """The part before the comma: a ticket, or ``readers``."""
        return self.value.rpartition(",")[0] or self.value


@value
class Doorman:
    """All that is stored about one resource but its mutex record.

    The default is the doorman of a resource that was never used.

    Attributes:
        last: The last fence given out; readers of one phase share it.
        number: The last number given to a queue entry.
        admit_upto: Readers with an entry up to this number may join although a writer
            waits.
        admit_until: End of that permission; 0 if they have not been called yet.
        seat: The mutex record as we wrote it, to tell ours from a foreign one.
        turns: Grants passed on inside one process since the record was last deleted.
        barred_until: No client enters before (``lock_delay`` after an expiry).
        upgraded: The writer was a reader before, and passed the queue.
        endings: Why recent grants ended early.
        created: Wall clock at the first step, shown to people; ``updated`` at the last.
        extra: Stored fields of a newer version, kept as they are.
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
    endings: tuple[LossNote, ...] = ()
    created: int = 0
    updated: int = 0
    extra: Extra = ()

    @property
    def writing(self) -> bool:
        return bool(self.grants) and self.grants[0].mode is Mode.WRITE

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
        """When the last grant expires; None if one never does, or there is none."""
        ends = 0
        for grant in self.grants:
            if grant.expires is None:
                return None
            ends = max(ends, grant.expires)
        return ends or None

    def after_reboot(self) -> Doorman:
        """Return the doorman with nothing kept but the fence."""
        # A store of one host counts leases by a clock that restarts with the host.
        # Their ends mean nothing after a boot
        # (test_another_boot_ends_everything_but_the_fence).
        return replace(
            self,
            grants=(),
            queue=(),
            upgrader=None,
            admit_until=0,
            barred_until=0,
        )


# The doorman of a resource that was never used.
UNUSED_DOORMAN: Doorman = Doorman()


def soonest_ending(grants: tuple[Grant, ...], count: int) -> list[Grant]:
    """Return the grants that end first, by expiry and ticket; endless ones last."""

    def order(grant: Grant) -> tuple[bool, int, str]:
        return grant.expires is None, grant.expires or 0, grant.ticket

    return nsmallest(count, grants, key=order)


def mutex_record_value(grants: tuple[Grant, ...], wall: int) -> str:
    """Return what the published mutex record contains: ticket, comma, Unix seconds."""
    first = grants[0]
    ticket = first.ticket if first.mode is Mode.WRITE else READERS
    return f"{ticket},{wall // 1_000_000}"


MAX_SHOWN_HOLDERS = 5
_FOREIGN = "foreign "


@value
class StepContext:
    """The circumstances of one step.

    ``turns``: the turn counter if a client enters an idle resource. ``vacate``: no
    client enters in this step, so that foreign programs see the mutex record deleted.
    """

    now: int
    floor: int
    foreign: MutexRecord | None
    turns: int = 0
    vacate: bool = False


def without_own_record(at: StepContext, tickets: Container[str]) -> StepContext:
    """Return the context without a foreign record that contains one of these tickets.

    Their holders learn in this step that they hold nothing (see
    ``core/mutex_record.py``).
    """
    foreign = at.foreign
    if foreign is None or foreign.ticket not in tickets:
        return at
    return replace(at, foreign=None)


def new_fence(doorman: Doorman, floor: int) -> int:
    """Return the fence of a new phase: above all before, also of a lost doorman."""
    return max(doorman.last + 1, floor)


def describe_holders(doorman: Doorman, foreign: MutexRecord | None) -> tuple[str, ...]:
    """Return texts that say who holds the resource: mode, holder, process, reason."""
    if foreign is not None:
        return (f"{_FOREIGN}{holder_of(foreign.ticket)}",)
    return describe_grants(doorman.grants)


def describe_grants(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    """Return texts for the grants that end first; see ``describe_holders``."""
    # Of 10,000 readers a few are enough.
    shown = soonest_ending(grants, MAX_SHOWN_HOLDERS)
    return tuple(f"{grant.mode} {grant.holder} {grant.who}" for grant in shown)


def is_foreign_holder(holders: tuple[str, ...]) -> bool:
    """Return whether ``describe_holders`` described a foreign program."""
    return bool(holders) and holders[0].startswith(_FOREIGN)
