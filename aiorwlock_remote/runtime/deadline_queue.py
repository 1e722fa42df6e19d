"""``DeadlineQueue``: the leases of one process by the times of their next checks."""

from __future__ import annotations

import heapq
import math

from aiorwlock_remote.runtime.lease import Lease, LeaseState

SLOT_SECONDS = 0.002
"""Leases due within this time of each other share a slot of the ``DeadlineQueue``."""
MAX_EMPTY_SLOTS = 1024
"""Slots after which those without a lease are dropped."""


class DeadlineQueue:
    """Leases ordered by the local time at which each is to be checked. Not thread-safe.

    Leases that are due within the same ``SLOT_SECONDS`` share a slot: the keys of a
    dict, in the order of their arrival (test_a_seed_is_always_the_same_story). A lease
    that ends leaves its slot at once, and empty slots are dropped now and then,
    so that ended leases use no memory. New leases that are due after the next check get
    a slot at that check only: most of them have ended by then.
    """

    def __init__(self) -> None:
        self.arrived: dict[Lease, None] = {}
        """The leases without a slot so far, each to be checked at its ``check_at``."""
        self._due: dict[int, dict[Lease, None]] = {}
        # A heap of the keys of ``_due``.
        self._slots: list[int] = []
        self._sweep_at = MAX_EMPTY_SLOTS
        self.keeps_endless: bool = False
        """Whether to keep leases that are never due, too, so that ``all`` has them."""
        self._endless: dict[Lease, None] = {}

    @property
    def next(self) -> float:
        """Local monotonic time of the next check (or a little earlier, if the lease to
        be checked was removed); infinity if the queue is empty.
        """
        return self._slots[0] * SLOT_SECONDS if self._slots else math.inf

    def put(self, lease: Lease, due: float) -> float:
        """Add a lease that is in no slot, to be checked at local monotonic time
        ``due``. Return the time of that check; infinity if the lease is never due.
        """
        if due == math.inf:
            if self.keeps_endless:
                self._endless[lease] = None
                lease.slot = self._endless
            return math.inf
        slot = math.ceil(due / SLOT_SECONDS)
        leases = self._due.get(slot)
        if leases is None:
            if len(self._due) >= self._sweep_at:
                self._drop_empty_slots()
            leases = self._due[slot] = {}
            heapq.heappush(self._slots, slot)
        leases[lease] = None
        lease.slot = leases
        return slot * SLOT_SECONDS

    def move(self, lease: Lease, due: float) -> float:
        """Add a lease to be checked at local monotonic time ``due``, or change its time
        if it is in the queue. Return the time of the check; infinity: never due.
        """
        lease.slot.pop(lease, None)
        return self.put(lease, due)

    def all(self) -> list[Lease]:
        self._give_slots()
        known = [lease for leases in self._due.values() for lease in leases]
        known += self._endless
        return [lease for lease in known if lease.state is LeaseState.HELD]

    def take(self, now: float, most: int) -> list[Lease]:
        """Remove and return up to ``most`` leases that are held and due by ``now``."""
        batch: list[Lease] = []
        self._give_slots()
        if self.next > now:
            return batch
        # Empty slots are removed here and not when the last lease leaves them: the
        # thread sleeps until the first slot, and if that went at once, each next lease
        # would have to wake the thread (test_slots_that_everybody_left_are_forgotten).
        while self._slots and len(batch) < most:
            leases = self._due[self._slots[0]]
            if leases and self.next > now:
                break
            due = list(leases)[: most - len(batch)]
            for lease in due:
                leases.pop(lease, None)
            batch += [lease for lease in due if lease.state is LeaseState.HELD]
            if not leases:
                del self._due[heapq.heappop(self._slots)]
        return batch

    def _give_slots(self) -> None:
        arrived, self.arrived = self.arrived, {}
        for lease in list(arrived):  # a copy: the loop's thread may end one meanwhile
            self.move(lease, lease.check_at)
            if lease.state is not LeaseState.HELD:
                lease.slot.pop(lease, None)  # it ended before it had the new slot

    def _drop_empty_slots(self) -> None:
        # ``take`` would come to a slot that lies a day ahead only in a day.
        self._due = {slot: leases for slot, leases in self._due.items() if leases}
        self._slots = list(self._due)
        heapq.heapify(self._slots)
        # Twice as many as are in use: else all would be looked through for each new.
        self._sweep_at = max(MAX_EMPTY_SLOTS, 2 * len(self._due))
