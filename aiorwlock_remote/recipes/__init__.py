"""What stands on locks, and locks in other stored forms than the mutex record.

On every store: leader election, jobs that run once in a period, and locks that move to
another store. On some stores:
mutex sets (named mutexes in a sorted set of Redis), row locks (in columns of the locked
row itself) and occupied objects (records of who uses an object and who wants it). A
store that cannot hold one raises ``Unsupported`` before a request is sent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aiorwlock_remote.recipes.mutex_set import MutexSet as MutexSet

if TYPE_CHECKING:
    from aiorwlock_remote.recipes.leader import Leader as Leader
    from aiorwlock_remote.recipes.moving import FenceSource as FenceSource
    from aiorwlock_remote.recipes.moving import MovingAcquisition as MovingAcquisition
    from aiorwlock_remote.recipes.moving import MovingHeld as MovingHeld
    from aiorwlock_remote.recipes.moving import MovingLock as MovingLock
    from aiorwlock_remote.recipes.occupancy import Occupancy as Occupancy
    from aiorwlock_remote.recipes.occupancy import Occupied as Occupied
    from aiorwlock_remote.recipes.once import Once as Once
    from aiorwlock_remote.recipes.once import OnceArgs as OnceArgs
    from aiorwlock_remote.recipes.row_lock.lock import RowAcquisition as RowAcquisition
    from aiorwlock_remote.recipes.row_lock.lock import RowHeld as RowHeld
    from aiorwlock_remote.recipes.row_lock.lock import RowLock as RowLock

# Imported when they are used: most programs use none of them.
_WHEN_NEEDED = {
    "FenceSource": "moving",
    "Leader": "leader",
    "MovingAcquisition": "moving",
    "MovingHeld": "moving",
    "MovingLock": "moving",
    "Occupancy": "occupancy",
    "Occupied": "occupancy",
    "Once": "once",
    "OnceArgs": "once",
    "RowAcquisition": "row_lock.lock",
    "RowHeld": "row_lock.lock",
    "RowLock": "row_lock.lock",
}


def __getattr__(name: str) -> object:
    module = _WHEN_NEEDED.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
