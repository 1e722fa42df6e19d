"""Leases by the time when they are to be looked at, in slots.

A lease that ends leaves its slot at once, and slots that everybody has left are
forgotten, so that many short grants cost no memory until they would have been renewed.
"""

from __future__ import annotations

import heapq
import math

from aiorwlock_remote.runtime.lease import Lease, LeaseState

GRAIN = 0.002
"""Seconds: leases due within so long of each other are looked at together."""
MAX_EMPTY_SLOTS = 1024
"""Slots that may stand empty."""


class DeadlineQueue:
    """What is to be looked at, and when. Its user guards it by a lock."""

    def __init__(self) -> None:
        self._due: dict[int, set[Lease]] = {}
        self._slots: list[int] = []  # a heap of the keys of ``_due``
        self._sweep_at = MAX_EMPTY_SLOTS
        self.keeps_endless: bool = False
        """Whether those that are never due are known as well."""
        self._endless: set[Lease] = set()

    @property
    def next(self) -> float:
        """When the next slot is due."""
        return self._slots[0] * GRAIN if self._slots else math.inf

    def put(self, lease: Lease, due: float) -> float:
        """Plan it, unless it is; when it is to be looked at, infinity if not newly."""
        if lease.kept_in is not None and lease in lease.kept_in:
            return math.inf
        if due == math.inf:
            if self.keeps_endless:
                self._endless.add(lease)
                lease.kept_in = self._endless
            return math.inf
        slot = math.ceil(due / GRAIN)
        leases = self._due.get(slot)
        if leases is None:
            if len(self._due) >= self._sweep_at:
                self._forget_left()
            leases = self._due[slot] = set()
            heapq.heappush(self._slots, slot)
        leases.add(lease)
        lease.kept_in = leases
        return slot * GRAIN

    def move(self, lease: Lease, due: float) -> float:
        """As ``put``, also if it was planned for another time."""
        if lease.kept_in is not None:
            lease.kept_in.discard(lease)
        return self.put(lease, due)

    def all(self) -> list[Lease]:
        """Every lease that is known and has not ended."""
        known = [lease for leases in self._due.values() for lease in leases]
        known += self._endless
        return [lease for lease in known if lease.state is LeaseState.HELD]

    def take(self, now: float, most: int) -> list[Lease]:
        """What is due, and slots that everybody has left are forgotten on the way.

        Not as soon as they are left: a thread that forgot the slot it was to wake for
        would have to be told of the next lease at once, each time.
        """
        batch: list[Lease] = []
        if self.next > now:
            return batch
        while self._slots and len(batch) < most:
            leases = self._due[self._slots[0]]
            if leases and self.next > now:
                break
            due = list(leases)[: most - len(batch)]
            leases.difference_update(due)
            batch += [lease for lease in due if lease.state is LeaseState.HELD]
            if not leases:
                del self._due[heapq.heappop(self._slots)]
        return batch

    def _forget_left(self) -> None:
        """One that lies a day ahead would be come upon in a day."""
        self._due = {slot: leases for slot, leases in self._due.items() if leases}
        self._slots = list(self._due)
        heapq.heapify(self._slots)
        # So many are in use: not to be looked through for each new one.
        self._sweep_at = max(MAX_EMPTY_SLOTS, 2 * len(self._due))
