"""What a scenario is: a name, who takes part, and how one repetition is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from benchmarks.redis.adapters import MEMORY
from benchmarks.redis.fleet import Worker, workers
from benchmarks.redis.jobs import Details, Job
from benchmarks.redis.server import Server

Measured = dict[str, list[float]]
"""Metric → what was measured; the unit is part of the metric's name."""


@dataclass(frozen=True)
class Round:
    """One peer on one loop, measured once. ``quick``: little, just to see it run.

    ``core``, ``other_core``: where what is sensitive to it is to run, if that can be
    told on this machine.
    """

    server: Server
    peer: str
    loop: str
    seed: int
    quick: bool = False
    core: int | None = None
    other_core: int | None = None
    programs: dict[str, Path] = field(default_factory=dict)

    def job(self, kind: str, **details: Unpack[Details]) -> Job:
        """A job of this round's."""
        url = f"memory://{self.seed}" if self.peer == MEMORY else self.server.url
        return Job(kind, self.peer, self.loop, url, self.seed, **details)

    def workers(self, *jobs: Job) -> AbstractContextManager[list[Worker]]:
        """Processes for these jobs."""
        return workers(*jobs, programs=self.programs)


@dataclass(frozen=True)
class Scenario:
    """``entrants``: pairs of peer and loop."""

    name: str
    title: str
    entrants: tuple[tuple[str, str], ...]
    measure: Callable[[Round], Measured]
