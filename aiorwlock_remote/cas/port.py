"""Port of a compare-and-set store: what ``CasStepper`` asks of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import field
from operator import attrgetter
from typing import Any

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Clock


@value
class StoredState:
    """Value object: one version of the state that a store keeps for one resource.

    ``record`` is the doorman and ``seat`` the mutex record, None if there is none.
    ``mark`` is a value that the store alone reads: two states of a resource with equal
    marks are the same version. Of two states of a resource, the one with the greater
    ``order`` is the newer.
    """

    record: Doorman | None
    seat: MutexRecord | None
    mark: Any = field(repr=False)
    order: int = field(default=0, compare=False)


SwapReply = tuple[bool, StoredState | None]
"""Whether a swap was carried out, and the state that is stored now; None: unknown."""
StoredStates = AsyncGenerator[tuple[Resource, Callable[[], StoredState]], None]
"""Stored resources, each with a function that returns its state."""


def newer_state(
    one: StoredState | None, other: StoredState | None
) -> StoredState | None:
    """Return the newer of two states of a resource. None counts as the oldest."""
    known = [state for state in (other, one) if state is not None]
    return max(known, key=attrgetter("order"), default=None)


@value
class StepTimes:
    """Value object: the clock readings that one step is computed with, in microseconds.

    ``now``: the store's clock or a lower bound of it, by which leases are judged.
    ``wall``: the store's wall clock, for times shown to people. ``floor``: the lowest
    fence that a new phase may get. ``sent``: ``CasStore.clock`` at the same moment.
    ``slack``: what is added to every lease of the step, because the store's clock may
    be ahead of ``now`` by so much when the step is stored (``ServerTime``).
    """

    now: int
    floor: int
    wall: int
    sent: int
    slack: int = 0


class CasContention(BackendUnavailable):
    """Raised when the store gave up a swap, for example in a deadlock; worth a retry.

    If ``nothing_done`` is set, the swap was not carried out. Else it may have been, or
    may still be carried out later.
    """


class RowLocked(BackendUnavailable):
    """Raised if a row stayed locked by another transaction. Sets ``nothing_done``."""


class CasStore(ABC):
    """Base of a connection to a compare-and-set store, for one event loop or thread.

    Every successful swap stores a version that was never used before, even if the
    records stay equal or the row was deleted in between. From then on the store refuses
    swaps that start from older versions, even if they were sent earlier and arrive
    late.

    Methods are called in the thread of the loop, send their request at once, and return
    a ``Pending``, whose reply is to be set in that thread. Cancelling a task that
    awaits a reply does not cancel the request.
    """

    def __init__(self, clock: Clock) -> None:
        self.local_clock: Clock = clock

    def clock(self) -> int:
        """Return microseconds of a local clock that also runs while the host sleeps."""
        return round(self.local_clock.now() * MICROS)

    @abstractmethod
    def guess(self) -> StoredState:
        """Return the state that an unused resource has, without asking the store.

        The first swap of an acquire may start from this state. The store refuses that
        swap if the resource has been used.
        """

    @abstractmethod
    def times(self, state: StoredState) -> StepTimes:
        """Return the clock readings for a step from ``state``. Sends no request.

        ``now`` must never be ahead of the clock by which other clients judge the leases
        of the step: else two clients could hold the resource.
        """

    @abstractmethod
    def load(self, resource: Resource) -> Pending[StoredState]:
        """Read the stored state; every swap answered before this call is visible in it.

        The reply fails with ``BackendError``.
        """

    def peek(self, resource: Resource) -> Pending[StoredState]:
        """Read a state that may be outdated, for waiters that poll. By default: load.

        For a store in which such a read costs less.
        """
        return self.load(resource)

    @abstractmethod
    def swap(
        self,
        resource: Resource,
        state: StoredState,
        record: Doorman,
        seat: MutexRecord | None,
        times: StepTimes,
        wakes: tuple[str, ...] = (),
    ) -> Pending[SwapReply]:
        """Store ``record`` and ``seat`` if ``state`` is still what is stored.

        The reply fails with ``BackendError``. Unless ``nothing_done`` is set, the
        failed swap may still be carried out as long as ``state`` is stored. After
        ``CasContention`` a retry may succeed.

        Args:
            resource: The resource.
            state: The version to compare with.
            record: The new doorman, computed with ``times``.
            seat: The new mutex record; None removes the stored one.
            times: What ``times(state)`` returned for this step.
            wakes: Ids of clients to notify, if the store can notify.

        Returns:
            True if the swap was carried out, and the state that is stored now, None if
            unknown. Its fences may differ from those of ``record``, because some
            servers choose the fence of a new phase themselves.
        """
