"""What goes on inside the worker processes: a module for each kind of job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.redis.adapters import Client
from benchmarks.redis.jobs import alone, batch, baton, crowd, heirs, hold, turns
from benchmarks.redis.jobs.job import Details, Job

RUN: dict[str, Callable[[Client, Job], Awaitable[None]]] = {
    "alone": alone.run,
    "baton": baton.run,
    "batch": batch.run,
    "crowd": crowd.run,
    "heirs": heirs.run,
    "hold": hold.run,
    "turns": turns.run,
}

__all__ = ["RUN", "Details", "Job"]
