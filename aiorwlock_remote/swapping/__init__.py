"""Stores that compare and set: a port for them, and ``Store.step`` made of it."""

from __future__ import annotations

from aiorwlock_remote.swapping.cas import Cas, GaveUp, State, Times
from aiorwlock_remote.swapping.steps import Swapping

__all__ = ["Cas", "GaveUp", "State", "Swapping", "Times"]
