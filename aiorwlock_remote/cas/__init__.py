"""The port of compare-and-set stores, and ``Store.step`` built on that port."""

from aiorwlock_remote.cas.port import (
    CasContention,
    CasStore,
    RowLocked,
    StepTimes,
    StoredState,
)
from aiorwlock_remote.cas.stepper import CasStepper

__all__ = [
    "CasContention",
    "CasStepper",
    "CasStore",
    "RowLocked",
    "StepTimes",
    "StoredState",
]
