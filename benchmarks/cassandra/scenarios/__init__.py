"""All scenarios. A new one is a ``Scenario`` in a module and a place in this list."""

from __future__ import annotations

from benchmarks.cassandra.scenarios import alone, crowd, handover, turns
from benchmarks.cassandra.server import Server
from benchmarks.shared.scenario import Scenario

SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        alone.C1,
        turns.C2,
        turns.C3,
        turns.C3P,
        crowd.C4,
        turns.C5,
        handover.C6,
    )
}

__all__ = ["SCENARIOS"]
