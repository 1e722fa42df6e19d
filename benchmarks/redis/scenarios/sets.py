"""M: what the mutexes of a set cost who takes any of them."""

from __future__ import annotations

import statistics

from benchmarks.redis.adapters import OURS
from benchmarks.redis.server import Server
from benchmarks.shared.alone import cycle_times
from benchmarks.shared.scenario import Measured, Round, Scenario

FEW = "cycle of any among 10, µs"
MANY = "cycle of any among 10,000, µs"


def measure(round_: Round[Server]) -> Measured:
    """The median cycle among few mutexes and among many, half of them held."""
    many = 100 if round_.quick else 10_000
    return {FEW: [_cycle_among(round_, 10)], MANY: [_cycle_among(round_, many)]}


def _cycle_among(round_: Round[Server], members: int) -> float:
    round_.server.empty()
    round_.server.fill("set", members)
    cycles = 50 if round_.quick else 2000
    with round_.server.pinned(round_.core):
        return statistics.median(cycle_times(round_, cycles, "any", "set"))


M: Scenario[Server] = Scenario("M", "any mutex of a set", ((OURS, "asyncio"),), measure)
