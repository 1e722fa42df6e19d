"""Bounds of the server's clock, for processes that seldom read that clock.

A step is computed in this process, and carried out later by the server: the time that a
record is computed with is not the time at which it is written. All the same, a lease
may be judged as expired only when it is expired by the server's clock, and its holder
must stop before (``runtime/lease.py``). So two bounds are used, never one estimate:

* ``least``: the server's clock in its last answer, plus the time since that answer
  arrived by the local boot clock. The server's clock cannot be behind ``least``: the
  time that the answer travelled is left out, and both clocks run at about the same
  speed (``DRIFT_DIVISOR``). ``least`` is the ``now`` of the transition, so no lease
  ends too soon, however slow the link is.
* *latest*: ``least`` plus a slack. The server refuses a request that arrives later,
  which is then sent again with more slack. So when a record is written, the server's
  clock is between the two bounds.

A holder counts its lease from before it sent its request. The server's clock was not
behind ``least`` then, but may have been ahead of it by up to the slack. A lease written
as ``least + lease`` could therefore end that much before its holder stops. So the slack
is added to every lease (``with_longer_leases``): ``expires = least + slack + lease >=
written + lease >= sent + lease``, by the server's clock.

The price is that a dead holder's lease ends later by the slack: ``MIN_SLACK``, or twice
what steps take on this link. A request refused as late was not carried out and never
will be. (A request that came in time and then waits for a row may still be carried out
later; the sum above holds for it too, since it counts from when it was sent.)

A pushed grant (``core/pushed.py``) is written by the client that leaves. Others may
judge it as expired when the server's clock shows its end, as any lease; its own client
stops to believe when *its* upper bound on that clock reaches the end. So both bounds
are needed again:

* The client's upper bound cannot be the ``least`` of its step: the server's clock may
  have been ahead of that, and the client would believe for up to the slack longer than
  the server honours the grant, beside the next holder. Replies tell what the server's
  clock showed in the answer to the request (``TableStepper``), read after the request
  was sent: from there on the clock cannot have run further than the time since.
* The window counts from ``least``, and the server's clock may be ahead by the slack
  when the record is written. So the slack is added to the window as well
  (``with_longer_push``): else nothing would be left of a short one, and the waiter
  would have to ask.

If the first answer to a grant was lost and a later request finds the grant, its age is
the server's clock in the later answer minus the grant's ``since``. Both err on the safe
side: the holder stops too early rather than too late.
"""

from __future__ import annotations

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote.core.commands import Claim, Command, Release, Renew, map_claims
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.core.value import replace, value

MIN_SLACK = 100_000
MAX_SLACK = 5_000_000
"""Microseconds of slack: the least, and the most before drift is added."""
SLACK_DECAY_DIVISOR = 20
"""An answer reduces the slack that a slow one caused by 1/20, …"""
SLACK_DECAY_INTERVAL = 10_000
"""… but not sooner than so many microseconds after the one that did so before it."""
DRIFT_DIVISOR = 2_000
"""The speeds of two clocks are assumed to differ by 1/2000 at most, as under NTP."""


@value
class Bounds:
    """Value object: bounds of the server's clock at one moment, in microseconds.

    The server's clock shows ``least`` or more. The server refuses a request that
    arrives when it shows more than ``least + slack``. Every lease is made longer by
    ``slack``.
    """

    least: int
    slack: int


class ServerTime:
    """Keeps bounds of one server's clock, updated by each answer. Thread-safe.

    Times are microseconds; local times count from the host's boot.
    """

    def __init__(
        self, now: int, at: int, shared: list[tuple[int, int]] | None = None
    ) -> None:
        """Start from an answer: server time ``now``, received at local time ``at``.

        ``shared``: the last answer of another one, see ``with_own_slack``.
        """
        self._lock = Lock()
        self._last = [(now, at)] if shared is None else shared
        self._slack = MIN_SLACK
        self._decayed_at = at

    def with_own_slack(self) -> ServerTime:
        """Return the same bounds, with a slack that only its own requests change.

        For requests that take longer, as many renewals do: the slack that they need
        would decay with each quick answer to others, and all of them come late.
        """
        return ServerTime(*self._last[0], self._last)

    def bounds(self, at: int) -> Bounds:
        """Return the bounds of the server's clock at the local time ``at``."""
        with self._lock:
            (now, since), slack = self._last[0], self._slack
        # ``at`` may be earlier: another thread took in an answer meanwhile.
        passed = max(0, at - since)
        drift = passed // DRIFT_DIVISOR
        return Bounds(now + passed - drift, slack + 2 * drift)

    def update(self, now: int, at: int, took: int) -> None:
        """Use a newer answer: server time ``now``, received at local time ``at``.

        ``took``: time from the call of ``bounds`` for the request until ``at``.
        """
        with self._lock:
            self._last[0] = now, at
            # Slowly: a request that takes longer than the slack is refused
            # (test_server_time.py: test_who_is_late_is_refused_and_then_waits_longer).
            # Answers that come together were sent together, and are one.
            decayed = self._slack
            if at - self._decayed_at >= SLACK_DECAY_INTERVAL:
                self._decayed_at = at
                decayed -= decayed // SLACK_DECAY_DIVISOR
            self._slack = min(MAX_SLACK, max(MIN_SLACK, 2 * took, decayed))


def with_longer_leases(command: Command, slack: int) -> Command:
    """Return the command with ``slack`` microseconds added to each lease that ends."""
    if not slack or (isinstance(command, Release) and not command.then):
        return command
    if isinstance(command, Renew):
        tickets = tuple(
            (ticket, None if lease is None else lease + slack)
            for ticket, lease in command.tickets
        )
        return replace(command, tickets=tickets)

    def longer(claim: Claim) -> Claim:
        lease = claim.lease
        return claim if lease is None else replace(claim, lease=lease + slack)

    return map_claims(command, longer)


def with_longer_push(step: Step, slack: int) -> Step:
    """Return the step with ``slack`` microseconds added to the grant that it pushes."""
    pushed = step.pushed
    if pushed is None or pushed.expires is None or step.seat is None:
        return step
    longer = replace(pushed, expires=pushed.expires + slack)
    queue = tuple(
        replace(entry, claim_until=longer.expires)
        if entry.ticket == longer.ticket
        else entry
        for entry in step.record.queue
    )
    record = replace(step.record, grants=(longer,), queue=queue)
    seat = MutexRecord(step.seat.value, longer.expires)
    return replace(step, record=record, seat=seat, pushed=longer)
