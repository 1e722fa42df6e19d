"""The commands that change a doorman, and the replies. Frozen values, checked once.

Times are microseconds, except where a name says seconds.
"""

from __future__ import annotations

from dataclasses import field

from aiorwlock_remote.core.doorman import UNKNOWN_REQUESTER, Grant, Requester
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import LossReason

# Microseconds an entry lives unless refreshed: three poll intervals of 1.5 s.
ENTRY_TTL = 4_500_000
# Microseconds for which a free resource is reserved for the head of the queue.
CLAIM_WINDOW = 100_000
# Grants passed on inside one process until the mutex record is deleted once.
MAX_LOCAL_TURNS = 100


class IllegalCommand(ValueError):
    """A command that makes no sense; nothing was changed."""


@value
class Claim:
    """One ticket asking to enter. ``lease`` in microseconds; None never expires."""

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

    def grant(self, mode: Mode, fence: int, now: int) -> Grant:
        """Return the grant of this claim if it is admitted now."""
        ends = None if self.lease is None else now + self.lease
        return Grant(self.ticket, mode, fence, now, ends, self.who, self.lock_delay)


@value
class Acquire:
    """Command: admit these tickets, or give their client an entry in the queue.

    Several claims are allowed for readers only: all waiting readers of a process enter
    in one step.

    Attributes:
        client_id: Random id of the client (one ``Locks``); needed for an entry.
        may_queue: Whether a refused acquire takes an entry.
        more: Tasks of the client that wait behind these claims. If it is not 0, the
            client gets a new entry at the tail once it is served.
        waiting: All waiting tasks of the client, shown to people and counted.
        max_waiters: Waiting tasks of all clients from which on an entry is refused.
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

    def __post_init__(self) -> None:
        if not self.claims:
            raise IllegalCommand("an acquire needs a claim")
        if self.mode is Mode.WRITE and len(self.claims) > 1:
            raise IllegalCommand("an acquire for writing has one claim")
        if len(self.claims) > 1:
            tickets = {claim.ticket for claim in self.claims}
            if len(tickets) < len(self.claims):
                raise IllegalCommand("two claims have one ticket")
        if (self.may_queue or self.more) and not self.client_id:
            raise IllegalCommand("an entry in the queue needs a client_id")


@value
class Release:
    """Command: end a grant, and let the client's next waiters ask in the same step.

    ``mode``: release only a grant of that mode.
    """

    ticket: str = field(repr=False)
    mode: Mode | None = None
    then: tuple[Acquire, ...] = ()


@value
class Withdraw:
    """Command: undo tickets, whatever became of them, and give the entry up.

    ``keep`` leaves the entry. ``upgrader``: the ticket of a reader that gives up
    waiting for its upgrade.
    """

    client_id: str
    mode: Mode
    tickets: tuple[str, ...] = field(default=(), repr=False)
    keep: bool = False
    upgrader: str = field(default="", repr=False)


@value
class Renew:
    """Command: let grants live ``lease`` from now, or as long as they would anyway."""

    tickets: tuple[tuple[str, int | None], ...] = field(repr=False)

    def __post_init__(self) -> None:
        if any(lease is not None and lease <= 0 for _, lease in self.tickets):
            raise IllegalCommand("a lease is positive or None")


@value
class Downgrade:
    """Command: turn a writer into a reader without a gap, under the claim's ticket."""

    ticket: str = field(repr=False)
    claim: Claim


@value
class Upgrade:
    """Command: turn the only reader into a writer; ``may_wait``: wait for others."""

    ticket: str = field(repr=False)
    claim: Claim
    client_id: str = ""
    may_wait: bool = False
    entry_ttl: int = ENTRY_TTL


@value
class Adopt:
    """Command: give a grant to another owner, under the ticket of the claim.

    Of several adopters of one ticket, the first gets the grant.
    """

    ticket: str = field(repr=False)
    claim: Claim


@value
class ForceRelease:
    """Command: break a grant that a person saw; holder and fence must both match.

    ``seat`` instead names a foreign mutex record by its exact value.
    """

    holder: str = ""
    fence: int = 0
    seat: str | None = field(default=None, repr=False)


Command = (
    Acquire | Release | Withdraw | Renew | Downgrade | Upgrade | Adopt | ForceRelease
)


@value
class Granted:
    """Reply: these grants hold; the other claims of the command still wait.

    ``placed``: whether the client has an entry in the queue after the step.
    """

    grants: tuple[Grant, ...]
    now: int
    placed: bool = False


@value
class Waiting:
    """Reply: not granted; the client has an entry, behind ``ahead`` others.

    ``retry_after``: microseconds until the store expects a change by itself, or None.
    """

    ahead: int
    retry_after: int | None
    holders: tuple[str, ...] = ()


@value
class Refused:
    """Reply: not granted, and no entry was taken. ``why`` is one of the words below."""

    why: str
    retry_after: int | None = None
    holders: tuple[str, ...] = ()


HELD, AHEAD, OTHER_MODE, FULL, BARRED = "held", "ahead", "other mode", "full", "barred"


@value
class NotHeld:
    """Reply: the ticket has no grant (any more), and why, as far as it is known."""

    reason: LossReason = "expired"


@value
class Conflict:
    """Reply: another reader is already waiting for its upgrade."""


@value
class Released:
    """Reply: whether the ticket held, and the replies to the acquires it carried."""

    held: bool
    reason: LossReason = "expired"
    then: tuple[Granted | Waiting | Refused, ...] = ()


@value
class Withdrawn:
    """Reply: the tickets among those withdrawn that had been granted."""

    held: tuple[str, ...] = field(default=(), repr=False)


@value
class Renewed:
    """Reply: for each ticket in order, its renewed grant or why it is gone."""

    outcomes: tuple[Grant | NotHeld, ...]


@value
class Forced:
    """Reply: whether the grant that was seen still existed, and is now broken."""

    done: bool


Answer = Granted | Waiting | Refused
Reply = Answer | NotHeld | Conflict | Released | Withdrawn | Renewed | Forced
