"""Compare-and-set stores: a step is computed in this process and stored by a swap.

For backends over get, compare-and-swap and range. A backend subclasses ``CasStore`` (a
connection: load, swap, clock readings) and ``CasLockStore`` (the store of a ``Locks``:
it opens and closes, lists what is stored, and makes the renewer). What this package
adds: the commands of a resource in order, retries after a refusal, swaps whose answers
were lost, waiting by reads, hints between clients, and renewals in a thread.
"""

from __future__ import annotations

from aiorwlock_remote._util.driver_loop import (
    DriverLoop,
    ThreadLoop,
    driver_loop_for,
    submit,
)
from aiorwlock_remote._util.pending import map_pending
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.backoff import CasBackoff, Later
from aiorwlock_remote.cas.poller import PollIntervals, StatePoller
from aiorwlock_remote.cas.port import (
    CasContention,
    CasStore,
    RowLocked,
    StepTimes,
    StoredState,
    StoredStates,
    SwapReply,
    newer_state,
)
from aiorwlock_remote.cas.renewer import CasRenewer
from aiorwlock_remote.cas.server_time import Bounds, ServerTime
from aiorwlock_remote.cas.stepper import CasStepper, WakeClients
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.cas.table_cas import relative_fences, with_fence
from aiorwlock_remote.cas.version_clock import VersionClock, WrittenAt

__all__ = [
    "ArrivalNotices",
    "Bounds",
    "CasBackoff",
    "CasContention",
    "CasLockStore",
    "CasRenewer",
    "CasStepper",
    "CasStore",
    "DriverLoop",
    "Later",
    "PollIntervals",
    "RowLocked",
    "ServerTime",
    "StatePoller",
    "StepTimes",
    "StoredState",
    "StoredStates",
    "SwapReply",
    "ThreadLoop",
    "VersionClock",
    "WakeClients",
    "WrittenAt",
    "driver_loop_for",
    "map_pending",
    "newer_state",
    "relative_fences",
    "submit",
    "with_fence",
]
