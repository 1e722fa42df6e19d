"""What a store must offer that compares and sets, and runs no code of this library."""

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
    """The state that is, or was, stored for a resource.

    ``mark`` belongs to the store: two states with equal marks are the same version.
    """

    record: Doorman | None
    seat: MutexRecord | None
    mark: Any = field(repr=False)


@value
class StepTimes:
    """The times with which one step is computed, in microseconds.

    ``now``, ``floor`` and ``wall`` are those of ``transition``.
    """

    now: int
    floor: int
    wall: int
    # ``CasStore.clock`` at the same moment.
    sent: int
    # Added to every lease of the step, see ``server_time``.
    slack: int = 0


class CasContention(BackendUnavailable):
    """The store gave up, for example under contention.

    The swap may have been carried out, may be carried out later, or not at all.
    """


class RowLocked(BackendUnavailable):
    """Another transaction kept the row locked for longer than the request waited.

    Always raised with ``nothing_done``.
    """


class CasStore(Protocol):
    """A store that compares and sets; ``CasStepper`` makes steps of it.

    Every swap leaves a new version that was never stored before, also if nothing else
    changes. From then on the store refuses each swap that starts from the version
    before and is still on its way.
    """

    def guess(self) -> StoredState:
        """Return the state of a resource that was never used: no record, no seat."""

    def clock(self) -> int:
        """Return local microseconds of a clock that runs while the host sleeps."""

    def times(self, state: StoredState) -> StepTimes:
        """Return the times for a step that starts from ``state``."""

    def load(self, resource: Resource) -> Pending[StoredState]:
        """Read the stored state; the read sees every swap that was answered before.

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
        """Store ``record`` and ``seat`` if ``state`` is still stored.

        Fails with ``BackendError``. Unless that says ``nothing_done``, the swap may
        still be carried out as long as ``state`` is stored. After ``CasContention``
        another attempt is worthwhile.

        ``record`` was computed with ``times`` just now. Where the store can, it
        notifies the clients whose ids are in ``wakes``.

        Returns:
            Whether it was stored, and what is stored now (None: unknown). The stored
            record may have other fences than ``record`` if the store chooses them.
        """
