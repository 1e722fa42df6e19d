"""All scenarios. A new one is a ``Scenario`` in a module and a place in this list."""

from __future__ import annotations

from benchmarks.redis.scenarios import (
    alone,
    crowd,
    handover,
    kills,
    readers,
    sets,
    turns,
)
from benchmarks.redis.scenarios.scenario import Measured, Round, Scenario

SCENARIOS: dict[str, Scenario] = {
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
    )
}

__all__ = ["SCENARIOS", "Measured", "Round", "Scenario"]
