"""All scenarios. A new one is a ``Scenario`` in a module and a place in this list."""

from __future__ import annotations

from benchmarks.redis.scenarios import (
    alone,
    crowd,
    handover,
    kept,
    kills,
    readers,
    sets,
    turns,
)
from benchmarks.redis.server import Server
from benchmarks.shared.scenario import Scenario

SCENARIOS: dict[str, Scenario[Server]] = {
    scenario.name: scenario
    for scenario in (
        alone.S1,
        turns.S2,
        handover.S3,
        turns.S4A,
        turns.S4B,
        turns.S4D,
        turns.S5,
        turns.S5R,
        crowd.S6,
        kills.S7,
        readers.R,
        sets.M,
        kept.K,
    )
}

__all__ = ["SCENARIOS"]
