"""K: what it costs to hold many locks and do nothing else."""

from __future__ import annotations

from benchmarks.redis.adapters import OURS
from benchmarks.redis.server import Server
from benchmarks.shared.scenario import Measured, Round, Scenario

SHARE = "10,000 locks held, % of a core"
LEASE = 30.0


def measure(round_: Round[Server]) -> Measured:
    """Processor time of the holder, over two leases."""
    locks, lease = (100, 0.5) if round_.quick else (10_000, LEASE)
    job = round_.job(
        "keep", tasks=locks, key="kept-{task}", lease=lease, seconds=2 * lease
    )
    with round_.workers(job) as (holder,):
        holder.tell("go")
        return {SHARE: [100 * holder.hear("share")["share"]]}


K: Scenario[Server] = Scenario(
    "K", "10,000 locks are kept", ((OURS, "asyncio"),), measure
)
