"""What a store that compares and sets, and runs no code of ours, has to offer."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import BackendUnavailable


@value
class StoredState:
    """What stands under a resource's name, or stood; ``mark`` is the store's own.

    Two states with equal marks are the same version.
    """

    record: Doorman | None
    seat: MutexRecord | None
    mark: Any = field(repr=False)


@value
class StepTimes:
    """What time it is for one step, in microseconds.

    ``now``, ``floor``, ``wall``: as the transition wants them. ``sent``:
    ``CasStore.clock`` just then. ``slack``: by how much every lease is to be longer,
    see ``server_time``.
    """

    now: int
    floor: int
    wall: int
    sent: int
    slack: int = 0


class CasContention(BackendUnavailable):
    """The store says that it gave up, e.g. under contention: done, or not, or later."""


class RowLocked(BackendUnavailable):
    """Another transaction keeps the row locked for longer than was waited.

    Always raised with ``nothing_done``.
    """


class CasStore(Protocol):
    """A store that compares and sets, and runs no code of ours.

    ``CasStepper`` makes steps of it. Every swap leaves another version behind,
    one that never was there before, also if it changes nothing else: what is still on
    its way from the version before is refused from then on.
    """

    def guess(self) -> StoredState:
        """Nothing: no record, no seat, never seen."""

    def clock(self) -> int:
        """Local time in microseconds, which goes on while the host is suspended."""

    def times(self, state: StoredState) -> StepTimes:
        """For a step from there."""

    def load(self, resource: Resource) -> Pending[StoredState]:
        """What stands there, after all that was answered before.

        Fails with ``BackendError``.
        """

    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[tuple[bool, StoredState | None]]:
        """Put these there if ``state`` still stands; tell the gates if you can.

        ``times``: by which they were worked out, just now.

        Whether they were, and what stands there now (None: not told). Its record may
        have other fences than were given, if it is the store that chooses them.

        Fails with ``BackendError``, which without ``nothing_done`` leaves it open, and
        it may still happen, as long as ``state`` stands. After
        ``CasContention`` it is worth another try.
        """
