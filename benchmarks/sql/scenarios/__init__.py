"""All scenarios. A new one is a ``Scenario`` in a module and a place in this list."""

from __future__ import annotations

from benchmarks.shared.scenario import Scenario
from benchmarks.sql.scenarios import alone, crowd, handover, turns
from benchmarks.sql.server import Server

SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (alone.Q1, turns.Q2, turns.Q3, crowd.Q4, handover.Q5)
}

__all__ = ["SCENARIOS"]
