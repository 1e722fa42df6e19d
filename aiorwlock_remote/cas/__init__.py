"""Stores that compare and set: a port for them, and ``Store.step`` made of it."""

from __future__ import annotations

from aiorwlock_remote.cas.port import Cas, GaveUp, RowLocked, State, Times
from aiorwlock_remote.swapping.steps import Swapping

__all__ = ["Cas", "GaveUp", "RowLocked", "State", "Swapping", "Times"]
