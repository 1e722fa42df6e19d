"""What this process was granted: a row that vanished cannot tell why it did."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from aiorwlock_remote.core.commands import NotHeld, Released, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import LossReason

CACHE_SIZE = 1024


class LocalGrants:
    """Our own grants and when the first of them may run out, by local clock.

    A grant that is gone before that time did not expire: somebody deleted its row, and
    the note why went with it. For all threads of a process.
    """

    def __init__(self) -> None:
        """Nobody yet."""
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}
        self._many = CACHE_SIZE

    def granted(self, grants: Sequence[Grant], now: int, sent: int) -> None:
        """They were granted by a request sent at ``sent``, ``now`` of the row's time.

        All in microseconds.
        """
        with self._lock:
            for grant in grants:
                left = math.inf if grant.expires is None else grant.expires - now
                self._ends[grant.ticket] = sent + left
            if len(self._ends) > self._many:
                alive = {t: e for t, e in self._ends.items() if e > sent}
                self._ends, self._many = alive, max(CACHE_SIZE, 2 * len(alive))

    def why(self, ticket: str, told: LossReason, clock: int) -> LossReason:
        """Why it is gone, if the row says so."""
        with self._lock:
            ends = self._ends.pop(ticket, 0.0)
        return "forced" if told == "expired" and clock < ends else told

    def gone(self, tickets: Sequence[str]) -> None:
        """Given back by ourselves."""
        with self._lock:
            for ticket in tickets:
                self._ends.pop(ticket, None)

    def corrected(self, reply: Reply, tickets: Sequence[str], clock: int) -> Reply:
        """The reply about these tickets, in order, with the true reasons."""
        match reply:
            case Released(held=False, reason=reason):
                return replace(reply, reason=self.why(tickets[0], reason, clock))
            case NotHeld(reason):
                return NotHeld(self.why(tickets[0], reason, clock))
            case Renewed(outcomes):
                true = tuple(
                    NotHeld(self.why(ticket, outcome.reason, clock))
                    if isinstance(outcome, NotHeld)
                    else outcome
                    for ticket, outcome in zip(tickets, outcomes, strict=True)
                )
                return Renewed(true)
            case _:
                return reply
