"""What a store that compares and sets, and runs no code of ours, has to offer."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.doorman import Record, Seat
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import BackendUnavailable


@value
class State:
    """What stands under a resource's name, or stood; ``mark`` is the store's own.

    Two states with equal marks are the same version.
    """

    record: Record | None
    seat: Seat | None
    mark: Any = field(repr=False)


@value
class Times:
    """What time it is for one step, in microseconds.

    ``now``, ``floor``, ``wall``: as the transition wants them. ``sent``: ``Cas.clock``
    just then. ``slack``: by how much every lease is to be longer, see ``server_time``.
    """

    now: int
    floor: int
    wall: int
    sent: int
    slack: int = 0


class GaveUp(BackendUnavailable):
    """The store says that it gave up, e.g. under contention: done, or not, or later."""


class RowLocked(BackendUnavailable):
    """Another transaction keeps the row locked for longer than was waited.

    Always raised with ``nothing_done``.
    """


class Cas(Protocol):
    """A store that compares and sets, and runs no code of ours.

    ``Swapping`` makes steps of it. Every swap leaves another version behind,
    one that never was there before, also if it changes nothing else: what is still on
    its way from the version before is refused from then on.
    """

    def guess(self) -> State:
        """Nothing: no record, no seat, never seen."""

    def clock(self) -> int:
        """Local time in microseconds, which goes on while the host is suspended."""

    def times(self, state: State) -> Times:
        """For a step from there."""

    def load(self, resource: Resource) -> Pending[State]:
        """What stands there, after all that was answered before.

        Fails with ``BackendError``.
        """

    def swap(
        self,
        resource: Resource,
        state: State,
        record: Record,
        seat: Seat | None,
        times: Times,
        wakes: tuple[str, ...] = (),
    ) -> Pending[tuple[bool, State | None]]:
        """Put these there if ``state`` still stands; tell the gates if you can.

        ``times``: by which they were worked out, just now.

        Whether they were, and what stands there now (None: not told). Its record may
        have other fences than were given, if it is the store that chooses them.

        Fails with ``BackendError``, which without ``nothing_done`` leaves it open, and
        it may still happen, as long as ``state`` stands. After
        ``GaveUp`` it is worth another try.
        """
