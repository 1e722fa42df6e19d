"""The commands that change a doorman, and the replies to them: immutable values.

Times are microseconds, except where a name says seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from aiorwlock_remote.core.doorman import (
    UNKNOWN_REQUESTER,
    Grant,
    QueueEntry,
    Requester,
)
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason

# On Python 3.11 reading a member from its class takes as long as a function call.
_WRITE, _PERMIT = Mode.WRITE, Mode.PERMIT
# Microseconds an entry lives unless refreshed: three poll intervals of 1.5 s.
ENTRY_TTL = 4_500_000
# Microseconds for which a free resource is reserved for the head of the queue.
CLAIM_WINDOW = 100_000


class IllegalCommand(ValueError):
    """A command makes no sense in the present state; nothing was changed."""


@value
class Claim:
    """Part of a command: a ticket to grant, its lease, and a description of its client.

    ``lease``: microseconds; None: the grant never expires. ``lock_delay``: for how many
    microseconds after the grant's expiry no client may enter.
    """

    ticket: str = field(repr=False)
    lease: int | None
    who: Requester = UNKNOWN_REQUESTER
    lock_delay: int = 0

    def __post_init__(self) -> None:
        if not self.ticket:
            raise IllegalCommand("a claim needs a ticket that is not empty")
        if self.lease is not None and self.lease <= 0:
            raise IllegalCommand("a lease is positive or None")

    @property
    def seconds(self) -> float | None:
        """The lease in seconds; None if a grant of this claim never expires."""
        return None if self.lease is None else self.lease / MICROS

    @property
    def may_be_pushed(self) -> bool:
        """Whether a queue entry may have this claim's ticket, to be granted by a step.

        A grant without end cannot be given back by time, and a lock delay would let a
        dead client cost more than one claim window.
        """
        return self.lease is not None and not self.lock_delay

    def grant(self, mode: Mode, fence: int, now: int, limit: int = 0) -> Grant:
        """Return the grant that this claim becomes if it is admitted at ``now``.

        ``limit``: of a semaphore's permit.
        """
        ends = None if self.lease is None else now + self.lease
        delay = self.lock_delay
        return Grant(self.ticket, mode, fence, now, ends, self.who, delay, limit)


@value
class Acquire:
    """Command: grant the tickets of ``claims``, or put their client into the queue.

    Several claims are allowed for readers, which enter in one step, and for permits:
    as many are granted as are free, in the order of the claims.

    Attributes:
        client_id: Random id of the client (one ``Locks``); needed for a queue entry.
        may_queue: Whether a refused acquire puts the client into the queue.
        more: How many tasks of the client wait behind these claims. If not 0, the
            client is queued again at the tail when the claims are granted.
        waiting: How many tasks of the client wait: for ``max_waiters`` and for people.
        max_waiters: Refuse the acquire if so many tasks of all clients wait already.
        entry_ttl: Microseconds after which the entry is dropped unless refreshed.
        claim_window: Microseconds for which a free resource is reserved for the entry.
        push: Whether the client can be granted its claim by a message, as long as the
            entry has it; for writers only.
        following: The claim of the client's next task, for the new entry that ``more``
            asks for.
        confirms: Whether the client already uses a pushed grant of this ticket. If it
            is gone, the reply is ``NotHeld``, and nothing is granted or queued.
        limit: How many permits the client allows in all; for permits only, at least 1.
    """

    claims: tuple[Claim, ...]
    mode: Mode
    policy: Policy = Policy.FAIR
    client_id: str = ""
    may_queue: bool = False
    more: int = 0
    waiting: int = 1
    max_waiters: int | None = None
    entry_ttl: int = ENTRY_TTL
    claim_window: int = CLAIM_WINDOW
    push: bool = False
    following: Claim | None = None
    confirms: bool = False
    limit: int = 0

    def __post_init__(self) -> None:
        if not self.claims:
            raise IllegalCommand("an acquire needs a claim")
        if len(self.claims) > 1:
            if self.mode is _WRITE:
                raise IllegalCommand("an acquire for writing has one claim")
            tickets = {claim.ticket for claim in self.claims}
            if len(tickets) < len(self.claims):
                raise IllegalCommand("two claims have one ticket")
        pushes = self.push or self.confirms or self.following is not None
        if pushes and self.mode is not _WRITE:
            raise IllegalCommand("only a writer's grant can be pushed")
        if (self.limit > 0) is not (self.mode is _PERMIT) or self.limit < 0:
            raise IllegalCommand("a permit has a limit from 1 up, a lock has none")
        if (self.may_queue or self.more) and not self.client_id:
            raise IllegalCommand("an entry in the queue needs a client_id")

    def entry_behind(self, own: QueueEntry, number: int, now: int) -> QueueEntry:
        """Return the entry of the ``more`` tasks, at the tail with this ``number``.

        ``own``: the client's entry so far.
        """
        return replace(
            with_claim(own, self.following, self.claims[0].who),
            number=number,
            expires=now + self.entry_ttl,
            claim_window=self.claim_window,
            waiting=self.more,
            claim_until=None,
        )


def with_claim(entry: QueueEntry, claim: Claim | None, who: Requester) -> QueueEntry:
    """Return the entry with this claim's ticket, so that it can be pushed.

    Without a ticket, and described by ``who``, if there is no claim or it may not be
    pushed.
    """
    if claim is None or claim.lease is None or not claim.may_be_pushed:
        return replace(entry, ticket="", lease=0, who=who)
    return replace(entry, ticket=claim.ticket, lease=claim.lease, who=claim.who)


@value
class Release:
    """Command: end a grant, then carry out the acquires in ``then`` in the same step.

    Those acquires are of waiting tasks of the same client. ``mode``: end the grant only
    if it has this mode; None: in any mode.
    """

    ticket: str = field(repr=False)
    mode: Mode | None = None
    then: tuple[Acquire, ...] = ()

    def __post_init__(self) -> None:
        if self.then and any(one.confirms for one in self.then):
            raise IllegalCommand("a task that waits has no grant to confirm")


@value
class Withdraw:
    """Command: undo an acquire, whether it was granted, queued or never arrived.

    ``keep``: whether the client's queue entry stays, for its other tasks. ``upgrader``:
    the ticket of a reader that gives up waiting for its upgrade.
    """

    client_id: str
    mode: Mode
    tickets: tuple[str, ...] = field(default=(), repr=False)
    keep: bool = False
    upgrader: str = field(default="", repr=False)


@value
class Renew:
    """Command: let grants expire a lease from now, and no earlier than before.

    ``tickets``: pairs of ticket and lease (microseconds; None: without end).
    ``exact``: also earlier than before. Only for grants of which no process has a
    deadline, as a holder may rely on the one it was promised.
    """

    tickets: tuple[tuple[str, int | None], ...] = field(repr=False)
    exact: bool = False

    def __post_init__(self) -> None:
        if any(lease is not None and lease <= 0 for _, lease in self.tickets):
            raise IllegalCommand("a lease is positive or None")


@value
class Downgrade:
    """Command: turn the writer ``ticket`` into the reader ``claim`` in one step."""

    ticket: str = field(repr=False)
    claim: Claim


@value
class Upgrade:
    """Command: turn the reader ``ticket`` into the writer ``claim`` in one step.

    ``may_wait``: if there are other readers, wait until they have left, for
    ``entry_ttl`` microseconds unless the command is repeated.
    """

    ticket: str = field(repr=False)
    claim: Claim
    client_id: str = ""
    may_wait: bool = False
    entry_ttl: int = ENTRY_TTL


@value
class Adopt:
    """Command: move the grant of ``ticket`` to the new owner's ticket, in ``claim``.

    If several owners adopt the same ticket, the first gets the grant.
    """

    ticket: str = field(repr=False)
    claim: Claim


@value
class ForceRelease:
    """Command: break the grant with this holder id and this fence, as a person asks.

    ``seat``: instead, remove another program's mutex record that has this value.
    """

    holder: str = ""
    fence: int = 0
    seat: str | None = field(default=None, repr=False)


Command = (
    Acquire | Release | Withdraw | Renew | Downgrade | Upgrade | Adopt | ForceRelease
)


def map_claims(command: Command, change: Callable[[Claim], Claim]) -> Command:
    """Return the command with each ``Claim`` in it replaced by ``change(claim)``."""
    match command:
        case Acquire():
            following = command.following
            return replace(
                command,
                claims=tuple(map(change, command.claims)),
                following=None if following is None else change(following),
            )
        case Downgrade() | Upgrade() | Adopt():
            return replace(command, claim=change(command.claim))
        case Release() if command.then:
            then = [map_claims(acquire, change) for acquire in command.then]
            acquires = tuple([each for each in then if isinstance(each, Acquire)])
            return replace(command, then=acquires)
        case _:
            return command


def without_push(command: Command) -> Command:
    """Return the command for a client that hears no messages now: nothing is to be
    granted to its queue entry.
    """
    if isinstance(command, Acquire) and command.push:
        return replace(command, push=False, following=None)
    if isinstance(command, Release) and any(one.push for one in command.then):
        then = tuple([replace(one, push=False, following=None) for one in command.then])
        return replace(command, then=then)
    return command


@value
class Granted:
    """Reply: these grants hold; the other claims of the command still wait.

    ``placed``: whether the client has an entry in the queue after the step. ``latest``:
    microseconds that the store's clock had not passed when the command was sent; 0:
    ``now`` is such a bound.
    """

    grants: tuple[Grant, ...]
    now: int
    placed: bool = False
    latest: int = 0


@value
class Waiting:
    """Reply: not granted; the client has a queue entry, behind ``ahead`` others.

    ``retry_after``: microseconds until an expiry may let the client enter; None: not
    known. ``holders``: a text about each holder, for people. ``now``: microseconds that
    the store's clock had not passed when the command was sent. ``limit``: how many
    permits count for the client: the least limit of those that hold and wait before it;
    0 for a lock. ``foreign``: whether the holder is another program, whose mutex record
    ends without a message of ours.
    """

    ahead: int
    retry_after: int | None
    holders: tuple[str, ...] = ()
    now: int = 0
    limit: int = 0
    foreign: bool = False


@value
class Refused:
    """Reply: not granted, not queued; ``why``: a constant such as ``HELD``.

    ``retry_after`` and ``holders``: as in ``Waiting``.
    """

    why: str
    retry_after: int | None = None
    holders: tuple[str, ...] = ()


HELD, AHEAD, OTHER_MODE, FULL, BARRED = "held", "ahead", "other mode", "full", "barred"


@value
class NotHeld:
    """Reply: the ticket has no grant; ``reason``: why its grant ended, if known."""

    reason: LossReason = "expired"


@value
class Conflict:
    """Reply to ``Upgrade``: another reader is already waiting to upgrade."""


@value
class Released:
    """Reply to ``Release``: whether the ticket had a grant; if not, the ``reason``.

    ``then``: the replies to the acquires in the command's ``then``.
    """

    held: bool
    reason: LossReason = "expired"
    then: tuple[Granted | Waiting | Refused, ...] = ()


@value
class Withdrawn:
    """Reply to ``Withdraw``: which of the command's tickets had been granted."""

    held: tuple[str, ...] = field(default=(), repr=False)


@value
class Renewed:
    """Reply to ``Renew``: for each ticket in order, its grant, or why it has none."""

    outcomes: tuple[Grant | NotHeld, ...]


@value
class Forced:
    """Reply to ``ForceRelease``: whether the grant existed and is now broken."""

    done: bool


Answer = Granted | Waiting | Refused
Reply = Answer | NotHeld | Conflict | Released | Withdrawn | Renewed | Forced
