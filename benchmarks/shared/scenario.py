"""What a scenario is: a name, who takes part, and how one repetition is measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, Unpack

from benchmarks.shared.jobs import Details, Job
from benchmarks.shared.workers import Worker, workers


class AnyServer(Protocol):
    """What every server can do; scenarios know more of theirs."""

    def empty(self) -> None:
        """No locks are left."""

    def url_for(self, peer: str, seed: int) -> str:
        """Where this peer finds its locks."""

    def connections(self) -> int:
        """How many clients' there are."""


S = TypeVar("S", bound=AnyServer)

Measured = dict[str, list[float]]
"""Metric → what was measured; the unit is part of the metric's name."""


@dataclass(frozen=True)
class Round(Generic[S]):
    """One peer on one loop, measured once. ``quick``: little, just to see it run.

    ``family``: the package whose ``adapters`` know the peer. ``core``, ``other_core``:
    where what is sensitive to it is to run, if that can be told on this machine.
    """

    family: str
    server: S
    peer: str
    loop: str
    seed: int
    quick: bool = False
    core: int | None = None
    other_core: int | None = None
    programs: dict[str, Path] = field(default_factory=dict)

    def job(self, kind: str, **details: Unpack[Details]) -> Job:
        """A job of this round's."""
        url = self.server.url_for(self.peer, self.seed)
        return Job(kind, self.family, self.peer, self.loop, url, self.seed, **details)

    def workers(self, *jobs: Job) -> AbstractContextManager[list[Worker]]:
        """Processes for these jobs."""
        return workers(*jobs, programs=self.programs)


@dataclass(frozen=True)
class Scenario(Generic[S]):
    """``entrants``: pairs of peer and loop."""

    name: str
    title: str
    entrants: tuple[tuple[str, str], ...]
    measure: Callable[[Round[S]], Measured]
