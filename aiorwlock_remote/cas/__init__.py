"""Stores that compare and set: a port for them, and ``Store.step`` made of it."""

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
