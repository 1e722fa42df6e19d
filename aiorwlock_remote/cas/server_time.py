"""What time it is on the server, for those who ask it seldom.

A step is computed here, and the server's clock is read there, when the step is carried
out: the time that a record is computed with is not the time at which it is written.
``LeaseTime`` says what must hold all the same: whoever judges a lease as run out must
be right by the server's clock, and whoever holds it stops before. So two bounds are
used, never one estimate:

* *least*: the server's clock in its last answer, and our own boot clock since that
  answer came. The server's clock cannot be behind that: the answer took its time, which
  is left out; clocks run at about one speed (``DRIFT_DIVISOR``). With it leases are
  judged, and it is the ``now`` of the transition. So nobody ends a lease too soon,
  however slow the link.
* *latest*: ``least`` and a slack. The server itself compares: what arrives there later
  is refused, and asked again with more slack. So at the write the clock is between the
  two.

A holder counts its lease from before it sent its request. The server's clock was not
behind ``least`` then, but by how much it was ahead nobody knows: up to the slack. A
lease written as ``least + lease`` would end that much before its holder stops. So every
lease is asked for with the slack added (``with_longer_leases``): ``expires = least +
slack + lease >= written + lease >= sent + lease``, by the server's clock.

The price is that a dead holder's lease ends later by the slack: ``MIN_SLACK``, or twice
what steps take on this link. What is refused for being late was not carried out and
never will be. (One that came in time and then waits for a row may still be carried out
later; the sum above holds for it, too, since it counts from when it was sent.)

A grant that is found again (its first answer was lost) is as old as the server's clock
says in the answer that finds it, less its ``since``: both err to the holder's cost.
"""

from __future__ import annotations

import threading

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Release,
    Renew,
    Upgrade,
)
from aiorwlock_remote.core.value import replace, value

MIN_SLACK = 100_000
MAX_SLACK = 5_000_000
"""Microseconds of slack: the least of it, and the most without drift."""
SLACK_DECAY_DIVISOR = 20
"""Each answer takes one part in so many off the slack that a slow one made."""
DRIFT_DIVISOR = 2_000
"""Clocks' speeds differ by one part in so many at most, as with NTP."""


@value
class Bounds:
    """The server's clock is at least that, and a request is refused ``slack`` later.

    By as much every lease is longer.
    """

    least: int
    slack: int


class ServerTime:
    """Bounds of one server's clock; microseconds. For all threads of a process."""

    def __init__(self, now: int, at: int) -> None:
        """It told ``now``, in an answer that came at ``at`` of our boot clock."""
        self._lock = threading.Lock()
        self._told = now, at
        self._slack = MIN_SLACK

    def bounds(self, at: int) -> Bounds:
        """As they are at ``at``."""
        with self._lock:
            (now, since), slack = self._told, self._slack
        passed = max(0, at - since)
        drift = passed // DRIFT_DIVISOR
        return Bounds(now + passed - drift, slack + 2 * drift)

    def told(self, now: int, at: int, took: int) -> None:
        """An answer came at ``at``, so long after its bounds were asked for."""
        with self._lock:
            self._told = now, at
            calmer = self._slack - self._slack // SLACK_DECAY_DIVISOR
            self._slack = min(MAX_SLACK, max(MIN_SLACK, 2 * took, calmer))


def with_longer_leases(command: Command, slack: int) -> Command:
    """The command with longer leases; one without an end has none here either."""
    if not slack:
        return command
    match command:
        case Acquire():
            claims = tuple([_longer_claim(claim, slack) for claim in command.claims])
            return replace(command, claims=claims)
        case Downgrade() | Upgrade() | Adopt():
            return replace(command, claim=_longer_claim(command.claim, slack))
        case Renew():
            tickets = tuple(
                (t, _longer_lease(lease, slack)) for t, lease in command.tickets
            )
            return replace(command, tickets=tickets)
        case Release() if command.then:
            then = [with_longer_leases(acquire, slack) for acquire in command.then]
            return replace(
                command, then=tuple(a for a in then if isinstance(a, Acquire))
            )
        case _:
            return command


def _longer_claim(claim: Claim, slack: int) -> Claim:
    return replace(claim, lease=_longer_lease(claim.lease, slack))


def _longer_lease(lease: int | None, slack: int) -> int | None:
    return None if lease is None else lease + slack
