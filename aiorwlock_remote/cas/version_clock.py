"""The time of one resource, computed without asking any server's clock.

For stores that have no clock in their step, or whose clocks differ: Cassandra, and any
store that only compares and sets.

Each row has a *frame* of its own, in which the times of its record are counted. A row
says what the frame's time was when the row was written (``frame``), and what the
writer's wall clock showed then (``wall``). A reader knows two lower bounds of how long
ago that was:

* its own boot clock since it first saw that version: the version existed before the
  answer that showed it arrived;
* its own wall clock against the writer's, less ``skew``, by which the two may differ.

The larger bound gives a time that is never ahead of the frame's true time. So no
process takes a lease for expired before its holder does, who counts from before it sent
its request, however long messages take. Each write stores the larger bound of its
writer as the new ``frame``.

The first bound is right if clocks run at the right speed, whatever they show: by it,
waiting processes are admitted when a lease ends. The second is for a process that has
just started, such as a job after a crash: for it a lease ends ``skew`` later.

(``max(frame + since seen, wall - skew)``, with the result as the next ``frame``, would
not do: two processes whose wall clocks differ would count one lease from different
beginnings. ``tests/cas/test_version_clock.py`` finds two holders.)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote.cas.port import StepTimes
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.value import value
from aiorwlock_remote.ports import Clock

MAX_VERSIONS_CACHED = 4096


@value
class WrittenAt:
    """When a version of a row was written, as far as this process knows. Microseconds.

    ``frame`` (the row's own time) and ``wall`` (the writer's wall clock), both at the
    write, are stored in the row. ``seen`` is our boot clock when this process first
    read the version; for a version that this process wrote, the moment before it was
    sent.
    """

    frame: int
    wall: int
    seen: int


class VersionClock:
    """Thread-safe cache: when each version of a row was written and first seen here.

    One object serves all ``CasStore`` objects of a ``Locks``. If the cache is full, the
    versions that were not read for the longest time go. A state keeps when its version
    was seen, so this tells only those that read the version once more.

    A row stores two times of its last write, in microseconds: ``frame``, which is
    ``StepTimes.now`` of that step, and ``wall``, which is its ``StepTimes.wall``.
    """

    def __init__(self, clock_skew: float = math.inf) -> None:
        """Create an empty cache.

        Args:
            clock_skew: Seconds by which the wall clocks of two processes may differ; if
                infinite, wall clocks do not count.
        """
        self._skew = micros(clock_skew) if clock_skew < math.inf else None
        self._lock = Lock()
        self._written: OrderedDict[Hashable, WrittenAt] = OrderedDict()

    def times(self, written: WrittenAt | None, clock: Clock) -> StepTimes:
        """Return the times of a step from a row, without a floor for its fence.

        Args:
            written: What ``read`` or ``wrote`` returned for the row's version; None:
                there is no row.
            clock: The local clock.
        """
        at, ours = micros(clock.now()), micros(clock.wall())
        if written is None:
            return StepTimes(ours, 0, ours, at)  # a new frame starts at our wall clock
        return StepTimes(earliest_now(written, at, ours, self._skew), 0, ours, at)

    def read(self, version: Hashable, frame: int, wall: int, clock: Clock) -> WrittenAt:
        """Note that a version was read now; return when it was written and first seen.

        Args:
            version: The row's version, which no other row ever has.
            frame: The row's time when the version was written, as stored.
            wall: The writer's wall clock at that moment, as stored.
            clock: The local clock.
        """
        return self._first(version, WrittenAt(frame, wall, micros(clock.now())))

    def wrote(self, version: Hashable, times: StepTimes) -> WrittenAt:
        """Note that a version is written by a step with these times; return when."""
        # From before it is sent, as the holder counts its lease from then.
        return self._first(version, WrittenAt(times.now, times.wall, times.sent))

    def _first(self, version: Hashable, written: WrittenAt) -> WrittenAt:
        # A later time would make the version look younger than it is known to be, and
        # a lease end later. A version that was forgotten counts as seen just now.
        with self._lock:
            first = self._written.setdefault(version, written)
            self._written.move_to_end(version)
            if len(self._written) > MAX_VERSIONS_CACHED:
                self._written.popitem(last=False)
            return first


def earliest_now(written: WrittenAt, boot: int, wall: int, skew: int | None) -> int:
    """Return a lower bound of the row's own time now, in microseconds.

    ``boot`` and ``wall`` are our clocks now, ``skew`` is by how much two wall clocks
    may differ, all in microseconds. If ``skew`` is None, wall clocks do not count.
    """
    ago = max(0, boot - written.seen)
    if skew is not None:
        ago = max(ago, wall - written.wall - skew)
    return written.frame + ago
