"""A resource's time, without asking any server's clock.

Each row has a *frame* of its own, in which the times of its record are counted. A row
says what the frame's time was when it was written (``frame``) and what the writer's
wall clock said then (``wall``). Whoever reads it knows two lower bounds of how long ago
that was:

* its own boot clock since it first saw that version: the version was there before the
  answer that showed it came;
* its own wall clock against the writer's, less ``skew``, by which the two may differ.

The larger one gives a time that is never ahead of the frame's true time. So nobody ever
judges a lease as run out before it has, as counted by its holder from before it sent
its request, however long messages take; and each write hands its own, later, bound on.

The first bound needs no clock to be right, only to run at the right speed; those who
wait get in when the lease ends. The second is for those who have only just come (a job
that tries once after a crash): for them a lease ends ``skew`` later.

(``max(frame + since seen, wall - skew)``, with the result as the next ``frame``, would
not do: two processes whose wall clocks differ would count one lease from different
beginnings. ``tests/backends/cassandra/test_row_time.py`` finds two holders.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from uuid import UUID

from aiorwlock_remote.core.value import value

MAX_VERSIONS_CACHED = 4096


@value
class WrittenAt:
    """When a version of a row was written, as far as one process knows. Microseconds.

    ``seen``: our boot clock when we knew that it had been written; for one of our own
    it is the moment before it was sent.
    """

    frame: int
    wall: int
    seen: int


class VersionClock:
    """When this process first knew of which version; for all of its threads."""

    def __init__(self) -> None:
        """Empty."""
        self._lock = threading.Lock()
        # By number: a UUID is hashed by Python code.
        self._written: OrderedDict[int, WrittenAt] = OrderedDict()

    def get(self, version: UUID) -> WrittenAt | None:
        """None: never seen, or forgotten: those go first that nobody asks for."""
        with self._lock:
            written = self._written.get(version.int)
            if written is not None:
                self._written.move_to_end(version.int)
            return written

    def add(self, version: UUID, written: WrittenAt) -> None:
        """Keep it, unless it is known already: the first time counts."""
        with self._lock:
            self._written.setdefault(version.int, written)
            if len(self._written) > MAX_VERSIONS_CACHED:
                self._written.popitem(last=False)


def earliest_now(written: WrittenAt, boot: int, wall: int, skew: int | None) -> int:
    """The least the frame's time can be now; ``skew`` None: trust no wall clock."""
    ago = max(0, boot - written.seen)
    if skew is not None:
        ago = max(ago, wall - written.wall - skew)
    return written.frame + ago
