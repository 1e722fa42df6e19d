"""What goes on inside the worker processes: a module for each kind of job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.shared.client import Client
from benchmarks.shared.jobs import (
    alone,
    batch,
    baton,
    heirs,
    hold,
    keep,
    many_tasks,
    turns,
)
from benchmarks.shared.jobs.job import Details, Job

RUN: dict[str, Callable[[Client, Job], Awaitable[None]]] = {
    "alone": alone.run,
    "baton": baton.run,
    "batch": batch.run,
    "crowd": many_tasks.run,
    "heirs": heirs.run,
    "hold": hold.run,
    "keep": keep.run,
    "turns": turns.run,
}

__all__ = ["RUN", "Details", "Job"]
