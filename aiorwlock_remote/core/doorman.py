"""The record: what a store (the "doorman") keeps beside a resource's seat.

The *seat* is the published mutex record: a ticket, or ``readers``, sits there while
somebody holds the resource. The doorman knows the rest: who holds it, who waits, and
the last fence handed out. Both are changed together, in one atomic step.

All times are microseconds of the store's clock.

What a step knows beside the record: the time, and who sits in the seat.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import field
from heapq import nsmallest

from aiorwlock_remote.core.ticket import READERS, Mode, holder_of
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason

Extra = tuple[tuple[str, object], ...]
"""Fields of a newer version that this one does not know, but keeps."""


@value
class Requester:
    """Who asked: for people, never for decisions."""

    host: str = ""
    pid: int = 0
    task: str = ""
    reason: str = ""

    def __str__(self) -> str:
        place = f"{self.host}/{self.pid}" if self.host or self.pid else "?"
        return f"{place}: {self.reason}" if self.reason else place


UNKNOWN_REQUESTER = Requester()


@value
class Grant:
    """One holder. ``expires`` None: never (a lease of None)."""

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
        """The ticket's public name."""
        return holder_of(self.ticket)

    def dead(self, now: int) -> bool:
        """Whether the lease has run out."""
        return self.expires is not None and self.expires <= now


@value
class QueueEntry:
    """A place in the queue: one process waiting for one mode, however many tasks.

    ``claim_until`` is set when the resource stands free for this place alone; a place
    that has not claimed by then is *late*: it keeps its order, but blocks nobody until
    its owner asks again. ``expires``: forgotten unless its owner asks before.
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
        """Whether it was offered the resource and did not come."""
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
    """Why grants of one fence ended early; ``holder`` "*" means all of them."""

    fence: int
    holder: str
    reason: LossReason


@value
class MutexRecord:
    """The published mutex record as it stands in the store right now."""

    value: str = field(repr=False)
    expires: int | None = None

    @property
    def ticket(self) -> str:
        """What stands before the comma: a ticket, or ``readers``."""
        return self.value.rpartition(",")[0] or self.value


@value
class Doorman:
    """Everything about one resource but its seat. The default is one never used.

    ``admit_upto``/``admit_until``: readers whose place has at most that number may
    join the read phase until that time though a writer waits; 0: they have not been
    called yet.
    ``seat``: the exact seat value we wrote, to tell ours from a foreign one.
    ``turns``: grants handed on inside one process since the seat was last vacant.
    ``barred_until``: nobody enters before (``lock_delay`` after an expiry).
    ``upgraded``: the writer was a reader before and passed the queue.
    ``created``/``updated``: the store's wall clock, to show to people.
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
        """Whether a writer holds the resource."""
        return bool(self.grants) and self.grants[0].mode is Mode.WRITE

    def grant(self, ticket: str) -> Grant | None:
        """The grant of a ticket, if it has one."""
        for grant in self.grants:
            if grant.ticket == ticket:
                return grant
        return None

    def entry(self, gate: str, mode: Mode) -> QueueEntry | None:
        """The place of a process for a mode, if it has one."""
        for place in self.queue:
            if place.client_id == gate and place.mode is mode:
                return place
        return None

    @property
    def ends(self) -> int | None:
        """When the last grant runs out; None if one never does or there is none."""
        ends = 0
        for grant in self.grants:
            if grant.expires is None:
                return None
            ends = max(ends, grant.expires)
        return ends or None

    def after_reboot(self) -> Doorman:
        """On a one-host store another boot ends everything but the fence."""
        return replace(
            self,
            grants=(),
            queue=(),
            upgrader=None,
            admit_until=0,
            barred_until=0,
        )


UNUSED_DOORMAN: Doorman = Doorman()
"""Of a resource that nobody has ever used."""


def soonest_ending(grants: tuple[Grant, ...], count: int) -> list[Grant]:
    """The grants that end first, by expiry and ticket; those that never do last."""

    def order(grant: Grant) -> tuple[bool, int, str]:
        return grant.expires is None, grant.expires or 0, grant.ticket

    return nsmallest(count, grants, key=order)


def mutex_record_value(grants: tuple[Grant, ...], wall: int) -> str:
    """What the published mutex record holds: ticket, comma, unix seconds."""
    first = grants[0]
    ticket = first.ticket if first.mode is Mode.WRITE else READERS
    return f"{ticket},{wall // 1_000_000}"


MAX_SHOWN_HOLDERS = 5
_FOREIGN = "foreign "


@value
class StepContext:
    """One step's circumstances.

    ``turns``: what the turn counter becomes if somebody enters an idle resource.
    ``vacate``: nobody enters in this step; the seat is shown vacant to foreigners.
    """

    now: int
    floor: int
    foreign: MutexRecord | None
    turns: int = 0
    vacate: bool = False


def without_own_record(at: StepContext, tickets: Container[str]) -> StepContext:
    """The moment without a foreign seat in which one of these tickets sits.

    Their holders are told that they hold nothing, see ``seat``.
    """
    foreign = at.foreign
    if foreign is None or foreign.ticket not in tickets:
        return at
    return replace(at, foreign=None)


def new_fence(door: Doorman, floor: int) -> int:
    """The number of a new phase: above all before, even if the record was lost."""
    return max(door.last + 1, floor)


def describe_holders(door: Doorman, foreign: MutexRecord | None) -> tuple[str, ...]:
    """Who holds the resource, for people: mode, holder, host/pid and reason.

    Those whose leases end first; among 10,000 readers a few are enough.
    """
    if foreign is not None:
        return (f"{_FOREIGN}{holder_of(foreign.ticket)}",)
    return describe_grants(door.grants)


def describe_grants(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    """Return the texts of the grants that end first, as in ``describe_holders``."""
    shown = soonest_ending(grants, MAX_SHOWN_HOLDERS)
    return tuple(f"{grant.mode} {grant.holder} {grant.who}" for grant in shown)


def is_foreign_holder(holders: tuple[str, ...]) -> bool:
    """Whether it is a foreign seat that was described."""
    return bool(holders) and holders[0].startswith(_FOREIGN)
