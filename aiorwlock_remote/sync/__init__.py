"""The synchronous API: the same names without ``await``, for any number of threads.

::

    from aiorwlock_remote.sync import connect

    with connect("sqlite:///locks.db") as locks:
        with locks.mutex("order", 42).acquire(timeout=2) as held:
            ...

The locks live in one event loop in a background thread. **A loss cannot stop a
thread**: ``held.check()``, ``held.guard(function)`` and the end of the ``with`` raise
``LockLost``.
"""

from __future__ import annotations

from aiorwlock_remote import (
    AcquireUncertain,
    Attempt,
    AttemptObserver,
    BackendError,
    BackendUnavailable,
    BadFence,
    BadRecord,
    Closed,
    ConfigurationError,
    Finding,
    GrantEnd,
    Holder,
    LockBusy,
    LockError,
    LockInfo,
    LockLost,
    LockTimeout,
    LossReason,
    ModeName,
    NotOwner,
    Observer,
    PolicyName,
    Queued,
    RenewalOutcome,
    ResourceId,
    StaleFence,
    Statistics,
    StoreObserver,
    TooManyWaiters,
    Unsupported,
    UpgradeConflict,
    WakeCause,
    WouldDeadlock,
)
from aiorwlock_remote.sync.api import (
    AnyLock,
    Held,
    Leader,
    Locks,
    Multi,
    Mutex,
    MutexSet,
    Occupancy,
    Occupied,
    Once,
    OnLost,
    OptionArgs,
    ReaderLock,
    RowHeld,
    RowLock,
    RWLock,
    Semaphore,
    WriterLock,
    connect,
)
from aiorwlock_remote.sync.recipes import Synchronized
from aiorwlock_remote.sync.transactions import ignore_transactions

__all__ = [
    "AcquireUncertain",
    "AnyLock",
    "Attempt",
    "AttemptObserver",
    "BackendError",
    "BackendUnavailable",
    "BadFence",
    "BadRecord",
    "Closed",
    "ConfigurationError",
    "Finding",
    "GrantEnd",
    "Held",
    "Holder",
    "Leader",
    "LockBusy",
    "LockError",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "Locks",
    "LossReason",
    "ModeName",
    "Multi",
    "Mutex",
    "MutexSet",
    "NotOwner",
    "Observer",
    "Occupancy",
    "Occupied",
    "OnLost",
    "Once",
    "OptionArgs",
    "PolicyName",
    "Queued",
    "RWLock",
    "ReaderLock",
    "RenewalOutcome",
    "ResourceId",
    "RowHeld",
    "RowLock",
    "Semaphore",
    "StaleFence",
    "Statistics",
    "StoreObserver",
    "Synchronized",
    "TooManyWaiters",
    "Unsupported",
    "UpgradeConflict",
    "WakeCause",
    "WouldDeadlock",
    "WriterLock",
    "connect",
    "ignore_transactions",
]
