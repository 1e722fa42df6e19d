"""What can be asked of a doorman, and what it answers. Frozen values, checked once."""

from __future__ import annotations

from dataclasses import field

from aiorwlock_remote.core.doorman import UNKNOWN_REQUESTER, Grant, Requester
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import LossReason

ENTRY_TTL = 4_500_000
"""How long a place lives unless refreshed: three poll intervals of 1.5 s."""
CLAIM_WINDOW = 100_000
"""How long the resource stands free for the head of the queue alone."""
MAX_LOCAL_TURNS = 100
"""After so many turns inside one process the seat is vacated once for the others."""


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
            raise IllegalCommand("a claim needs a ticket")
        if self.lease is not None and self.lease <= 0:
            raise IllegalCommand("a lease is positive or None")

    @property
    def seconds(self) -> float | None:
        """How long a grant of it lives; None: for ever."""
        return None if self.lease is None else self.lease / MICROS

    def grant(self, mode: Mode, fence: int, now: int) -> Grant:
        """What it gets if it is let in now."""
        ends = None if self.lease is None else now + self.lease
        return Grant(self.ticket, mode, fence, now, ends, self.who, self.lock_delay)


@value
class Acquire:
    """Let these tickets in, or give their process a place in the queue.

    Several claims only for readers: all readers a process has waiting enter in one
    step. ``gate`` names the process (a nonce); ``waiting`` counts its waiting tasks;
    with ``more`` it gets a new place at the tail after being served.
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
            raise IllegalCommand("nobody asks")
        if self.mode is Mode.WRITE and len(self.claims) > 1:
            raise IllegalCommand("writers enter one at a time")
        if len(self.claims) > 1:
            tickets = {claim.ticket for claim in self.claims}
            if len(tickets) < len(self.claims):
                raise IllegalCommand("one ticket asks twice")
        if (self.may_queue or self.more) and not self.client_id:
            raise IllegalCommand("a place belongs to a gate")


@value
class Release:
    """End a grant, and in the same step let the process's next waiters ask.

    ``mode``: only if held in that mode.
    """

    ticket: str = field(repr=False)
    mode: Mode | None = None
    then: tuple[Acquire, ...] = ()


@value
class Withdraw:
    """Take tickets back, whatever became of them; ``keep`` leaves the place.

    ``upgrader``: a reader that does not want to become a writer any more.
    """

    client_id: str
    mode: Mode
    tickets: tuple[str, ...] = field(default=(), repr=False)
    keep: bool = False
    upgrader: str = field(default="", repr=False)


@value
class Renew:
    """Make grants live ``lease`` from now, or as long as they would anyway."""

    tickets: tuple[tuple[str, int | None], ...] = field(repr=False)

    def __post_init__(self) -> None:
        if any(lease is not None and lease <= 0 for _, lease in self.tickets):
            raise IllegalCommand("a lease is positive or None")


@value
class Downgrade:
    """Writer → reader without a gap; the claim's ticket replaces the old one."""

    ticket: str = field(repr=False)
    claim: Claim


@value
class Upgrade:
    """The only reader → writer; with ``may_wait`` it keeps the one upgrader's slot."""

    ticket: str = field(repr=False)
    claim: Claim
    client_id: str = ""
    may_wait: bool = False
    entry_ttl: int = ENTRY_TTL


@value
class Adopt:
    """From one owner to another; the claim's ticket replaces the old one.

    Of several that ask for one ticket, the first gets it.
    """

    ticket: str = field(repr=False)
    claim: Claim


@value
class ForceRelease:
    """Break a grant that is seen on screen: holder and fence must both match.

    ``seat`` instead names a foreign seat by its exact value.
    """

    holder: str = ""
    fence: int = 0
    seat: str | None = field(default=None, repr=False)


Command = (
    Acquire | Release | Withdraw | Renew | Downgrade | Upgrade | Adopt | ForceRelease
)


@value
class Granted:
    """These grants hold. Claims of the command that are not among them still wait."""

    grants: tuple[Grant, ...]
    now: int
    placed: bool = False


@value
class Waiting:
    """Not now; the process has a place. ``ahead`` places are before it.

    ``retry_after``: microseconds until the store expects a change by itself, or None.
    """

    ahead: int
    retry_after: int | None
    holders: tuple[str, ...] = ()


@value
class Refused:
    """Not now, and no place was taken."""

    why: str
    retry_after: int | None = None
    holders: tuple[str, ...] = ()


HELD, AHEAD, OTHER_MODE, FULL, BARRED = "held", "ahead", "other mode", "full", "barred"


@value
class NotHeld:
    """The ticket has no grant (any more), and why as far as is known."""

    reason: LossReason = "expired"


@value
class Conflict:
    """Another reader is upgrading already."""


@value
class Released:
    """Whether the ticket held; answers to what the release carried along."""

    held: bool
    reason: LossReason = "expired"
    then: tuple[Granted | Waiting | Refused, ...] = ()


@value
class Withdrawn:
    """Tickets among those withdrawn that had been granted."""

    held: tuple[str, ...] = field(default=(), repr=False)


@value
class Renewed:
    """For each ticket in order: its new expiry (None: never), or why it is gone."""

    outcomes: tuple[Grant | NotHeld, ...]


@value
class Forced:
    """Whether what was seen on screen was still there."""

    done: bool


Answer = Granted | Waiting | Refused
Reply = (
    Granted
    | Waiting
    | Refused
    | NotHeld
    | Conflict
    | Released
    | Withdrawn
    | Renewed
    | Forced
)
