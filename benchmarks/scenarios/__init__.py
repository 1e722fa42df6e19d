"""All scenarios. A new one is a module with ``NAME``, ``fits`` and ``measure``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Protocol

from benchmarks.peer import Peer
from benchmarks.scenarios import alone, processes, tasks


class Scenario(Protocol):
    """A way to use a lock, and what is measured of it."""

    NAME: str
    """As the report shows it."""

    def fits(self, peer: Peer) -> bool:
        """Whether this peer can be used so."""

    def measure(
        self, peer: Peer, loop: str, folder: Path, size: float, seed: int
    ) -> dict[str, float]:
        """One repetition: metric → value. ``size``: 1 in full, less is less."""


SCENARIOS: dict[str, ModuleType] = {
    module.NAME: module for module in (alone, tasks, processes)
}
