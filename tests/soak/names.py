"""The names that the clients of a soak lock.

A name in a history is ``KIND/NUMBER``. ``own``: of one place among the processes, whose
processes, one after the other, use it alone. ``hot``: of all. ``long``: of all, held
for longer than a lease. ``passed``: a grant is
detached by one process and adopted by another. ``permits``: a semaphore. ``set``: a
mutex of a mutex set.
"""

from __future__ import annotations

OWN = 20
"""Own names of each task."""
HOT = 8
FAIR = ("hot/0", "hot/1", "hot/2")
"""Hot names that are used as plain mutexes only: the fairness bound is theirs."""
UNFAIR = 3
"""The hot name whose mutex is acquired with ``fair=False``."""
LONG = 3
"""Names that are held for up to ``LEASES`` leases, by all."""
LEASES = 2.5
PASSED = 4
SEMAPHORES = 2
LIMIT = 3
"""Permits of each semaphore."""
SET = "pool"
MEMBERS = ("one", "two", "three")


def own_number(place: int, task: int, which: int) -> int:
    return 100_000 * place + 100 * task + which


def owned(place: int, tasks: int) -> list[int]:
    """Return the numbers of all own names of a place."""
    return [own_number(place, t, n) for t in range(tasks) for n in range(OWN)]
