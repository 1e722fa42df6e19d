"""Port of compare-and-set stores, which run no code of this library on their server."""

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
    """Value object: one version of the state that a store keeps for one resource.

    ``record`` and ``seat`` are the doorman and the mutex record, or None. ``mark`` is
    the store's own version: two states with equal marks are the same version.
    """

    record: Doorman | None
    seat: MutexRecord | None
    mark: Any = field(repr=False)


@value
class StepTimes:
    """Value object: the clock readings that one step is computed with, in microseconds.

    ``now``: the store's clock or a lower bound of it. ``wall``: the store's time to
    show to people. ``floor``: lowest fence of a new phase.
    """

    now: int
    floor: int
    wall: int
    # ``CasStore.clock`` at the same moment.
    sent: int
    # Added to every lease of the step, see ``server_time``.
    slack: int = 0


class CasContention(BackendUnavailable):
    """Raised when the store gave up a swap, for example because of another transaction.

    If ``nothing_done`` is set, the swap was not carried out. Else it may have been, or
    may still be carried out later.
    """


class RowLocked(BackendUnavailable):
    """Raised if another transaction locked a row too long; sets ``nothing_done``."""


class CasStore(Protocol):
    """Port: a compare-and-set store, from which ``CasStepper`` makes a ``Store``.

    Every successful swap stores a version that was never used before, also if nothing
    else changes. From then on the store refuses swaps that start from older versions,
    even those that were sent before and arrive late.
    """

    def guess(self) -> StoredState:
        """Return the state that an unused resource has, without asking the store."""

    def clock(self) -> int:
        """Return microseconds of a local clock that also runs while the host sleeps."""

    def times(self, state: StoredState) -> StepTimes:
        """Return the clock readings for a step computed from ``state``. No I/O."""

    def load(self, resource: Resource) -> Pending[StoredState]:
        """Read the stored state; every swap answered before this call is visible in it.

        The reply fails with ``BackendError``.
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
        """Store ``record`` and ``seat`` if ``state`` is still what is stored.

        The reply fails with ``BackendError``. Unless ``nothing_done`` is set, the
        failed swap may still be carried out as long as ``state`` is stored. After
        ``CasContention`` another attempt is worthwhile.

        Args:
            resource: The resource.
            state: The version to compare with.
            record: The new doorman, computed with ``times``.
            seat: The new mutex record; None removes the stored one.
            times: What ``times(state)`` returned for this step.
            wakes: Ids of clients to notify, if the store can notify.

        Returns:
            Whether the swap was carried out, and the state that is stored now, None if
            unknown. A store that chooses the fences may have changed those of
            ``record``.
        """
