"""Locks that many machines share, for async Python: mutexes, readers-writer locks, and
semaphores.

::

    from aiorwlock_remote import connect

    async with connect("sqlite:///locks.db") as locks:
        async with locks.mutex("order", 42) as held:
            ...
"""

from __future__ import annotations

from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.ticket import ModeName
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    BadFence,
    BadRecord,
    Closed,
    ConfigurationError,
    LockBusy,
    LockError,
    LockLost,
    LockTimeout,
    LossReason,
    NotOwner,
    StaleFence,
    TooManyWaiters,
    Unsupported,
    UpgradeConflict,
    WouldDeadlock,
)
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting, connect
from aiorwlock_remote.locks.diagnostics import Statistics
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.info import Holder, LockInfo, Queued
from aiorwlock_remote.locks.lock import (
    AnyLock,
    InTransaction,
    Mutex,
    OnLost,
    OptionArgs,
    ReaderLock,
    RWLock,
    Semaphore,
    Synchronized,
    WriterLock,
)
from aiorwlock_remote.locks.multi import Multi
from aiorwlock_remote.locks.observers import (
    Attempt,
    AttemptObserver,
    GrantEnd,
    Observer,
    StoreObserver,
)
from aiorwlock_remote.locks.options import PolicyName
from aiorwlock_remote.ports import Finding
from aiorwlock_remote.runtime.lease_keeper import RenewalOutcome
from aiorwlock_remote.runtime.wait_queue import WakeCause

__version__ = "0.1.0"

__all__ = [
    "AcquireUncertain",
    "Acquisition",
    "AnyLock",
    "Attempt",
    "AttemptObserver",
    "BackendError",
    "BackendUnavailable",
    "BadFence",
    "BadRecord",
    "Closed",
    "ConfigurationError",
    "Connecting",
    "Finding",
    "GrantEnd",
    "Held",
    "Holder",
    "InTransaction",
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
    "NotOwner",
    "Observer",
    "OnLost",
    "OptionArgs",
    "PolicyName",
    "Queued",
    "RWLock",
    "ReaderLock",
    "RenewalOutcome",
    "ResourceId",
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
    "__version__",
    "connect",
]
