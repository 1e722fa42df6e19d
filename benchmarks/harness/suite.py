"""Run the scenarios of a suite, and print which of its bars hold.

Each repetition goes once through all entrants of a scenario, in a random order, so that
a slow minute of the machine hits all of them. Bars compare figures of one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from benchmarks.harness.lock import LOOPS
from benchmarks.harness.report import (
    Bar,
    Figures,
    FloorOf,
    Sample,
    bar_table,
    command_line,
    ratio_tables,
    rows,
    surroundings,
    tables,
    verdicts,
)
from benchmarks.harness.scenario import AnyServer, Round, Scenario

S = TypeVar("S", bound=AnyServer)

REPETITIONS = 3
MAX_FAILURES = 2
"""Repetitions in which a peer may break before the scenario goes on without it: many of
these failures are waits of half a minute."""

Programs = tuple[dict[str, Path], list[str]]
"""The executable of each peer that is no worker in Python, and notes for the report on
the peers that are missing."""


def _no_programs(folder: Path, peers: set[str]) -> Programs:
    del folder, peers
    return {}, []


@dataclass(frozen=True)
class Suite(Generic[S]):
    """All that is measured on one kind of server.

    Attributes:
        family: Package of the suite, whose ``adapters`` open its peers.
        server: Starts the server, given an empty folder and the options.
        versions: Returns what the report says about the server.
        foreign: Peers that are no worker in Python.
        programs: Builds, in a folder, the executables of the foreign peers that take
            part.
        arguments: Adds options for ``server`` to the command line.
        loops: Event loops that are measured unless ``--loop`` says otherwise.
        floor_of: If given, the tables have a line for each peer, with its ratio to the
            floor.
    """

    family: str
    peers: tuple[str, ...]
    scenarios: dict[str, Scenario[S]]
    bars: tuple[Bar, ...]
    server: Callable[[Path, argparse.Namespace], AbstractContextManager[S]]
    versions: Callable[[S], dict[str, object]]
    foreign: frozenset[str] = frozenset()
    programs: Callable[[Path, set[str]], Programs] = _no_programs
    arguments: Callable[[argparse.ArgumentParser], object] = lambda _: None
    loops: tuple[str, ...] = tuple(LOOPS)
    floor_of: FloorOf | None = None


def run(suite: Suite[S], argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code.

    A bar that does not hold is no failure: the exit code is 1 only if a measurement
    broke.
    """
    options = parse(suite, argv)
    measuring = measure(suite, options)
    about = measuring.about
    found = list(verdicts(suite.bars, Figures(measuring.samples)))
    if suite.bars:
        shown = [v for v in found if v.holds is not None or not options.scenario]
        print(bar_table(shown, list(suite.scenarios)))
        print()
    if suite.floor_of is not None:
        print(ratio_tables(rows(measuring.samples, suite.floor_of)))
    else:
        print(tables(measuring.samples, {s.name: s.title for s in measuring.scenarios}))
    for note in [*measuring.notes, *map(str, measuring.failed)]:
        print(f"\n{note}")
    if options.json is not None:
        result = {
            "about": about | {"command": command_line(suite.family)},
            "notes": measuring.notes,
            "failed": list(map(str, measuring.failed)),
            "seed": options.seed,
            "repetitions": measuring.repetitions,
            "quick": options.quick,
            "bars": [verdict.as_dict() for verdict in found],
            "samples": [sample.as_dict() for sample in measuring.samples],
        }
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 1 if measuring.failed else 0


@dataclass(frozen=True)
class Failure:
    """A measurement that broke."""

    scenario: str
    peer: str
    loop: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scenario}, {self.peer}, {self.loop}: {self.reason}"


class Observer(Protocol):
    """What is told how far a run is."""

    def wants(self, scenario: str) -> bool:
        """Return False if the scenario is to be left out."""

    def begins(self, scenario: str, repetition: int, peer: str, loop: str) -> None:
        """Called before each round."""

    def ended(self, run: Run[Any], scenario: str, failed: Sequence[Failure]) -> None:
        """Called when all repetitions of a scenario were measured."""


class Printer:
    """Prints the name of each round."""

    def wants(self, scenario: str) -> bool:
        del scenario
        return True

    def begins(self, scenario: str, repetition: int, peer: str, loop: str) -> None:
        print(f"{scenario} {repetition}: {peer}, {loop}", file=sys.stderr)

    def ended(self, run: Run[Any], scenario: str, failed: Sequence[Failure]) -> None:
        del run, scenario, failed


def measure(
    suite: Suite[S], options: argparse.Namespace, observer: Observer | None = None
) -> Run[S]:
    """Start the server of a suite and measure all that the options choose."""
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        with suite.server(folder, options) as server:
            about = surroundings(folder) | suite.versions(server)
            watching = Printer() if observer is None else observer
            measuring = Run(suite, server, options, folder, about, watching)
            for scenario in measuring.scenarios:
                if watching.wants(scenario.name):
                    measuring.measure(scenario)
    return measuring


@dataclass
class Run(Generic[S]):
    """One run of a suite: what was chosen, and what was measured so far."""

    suite: Suite[S]
    server: S
    options: argparse.Namespace
    folder: Path
    about: dict[str, object]
    observer: Observer
    samples: list[Sample] = field(default_factory=list[Sample])
    notes: list[str] = field(default_factory=list[str])
    failed: list[Failure] = field(default_factory=list[Failure])

    def __post_init__(self) -> None:
        known = self.suite.scenarios
        self.scenarios = [known[name] for name in self.options.scenario or known]
        self.repetitions: int = 1 if self.options.quick else self.options.repeat
        self._loops = self.options.loop or self.suite.loops
        self._chance = random.Random(self.options.seed)
        entrants = {peer for s in self.scenarios for peer, _ in s.entrants}
        self._peers = entrants.intersection(self.options.peer or self.suite.peers)
        foreign = self._peers & self.suite.foreign
        self._programs, notes = self.suite.programs(self.folder, foreign)
        # A peer whose program cannot be built is left out, and a note says so.
        self._peers -= foreign - self._programs.keys()
        self._cores = _cores()
        self.notes += notes
        if None in self._cores:
            text = "Not all that is to run on a certain core could be put there."
            self.notes.append(text)

    def measure(self, scenario: Scenario[S]) -> None:
        """Measure all repetitions of a scenario."""
        order = [
            (peer, loop)
            for peer, loop in scenario.entrants
            if peer in self._peers and loop in self._loops
        ]
        samples: list[Sample] = []
        earlier = len(self.failed)
        for repetition in range(scenario.repetitions(self.repetitions)):
            for entrant in self._chance.sample(order, len(order)):
                if self._failures(earlier, *entrant) < MAX_FAILURES:
                    samples += self._measure_once(scenario, repetition, *entrant)
        samples.sort(key=lambda s: (order.index((s.peer, s.loop)), s.repetition))
        self.samples += samples
        self.observer.ended(self, scenario.name, self.failed[earlier:])

    def _failures(self, earlier: int, peer: str, loop: str) -> int:
        """Return how often a peer broke, without so many earlier failures."""
        return sum((f.peer, f.loop) == (peer, loop) for f in self.failed[earlier:])

    def _measure_once(
        self, scenario: Scenario[S], repetition: int, peer: str, loop: str
    ) -> list[Sample]:
        self.server.empty()
        family = self.suite.family
        round_ = Round(
            family,
            self.server,
            peer,
            loop,
            self._chance.randrange(2**32),
            self.options.quick,
            *self._cores,
            programs=self._programs,
            scale=self.options.scale,
            repetition=repetition,
        )
        self.observer.begins(scenario.name, repetition, peer, loop)
        try:
            measured = scenario.measure(round_)
        except (AssertionError, OSError, RuntimeError, ValueError) as exc:
            # One peer that breaks must not cost the figures of all others
            # (test_a_failure_is_reported_and_the_others_go_on).
            self.failed.append(Failure(scenario.name, peer, loop, str(exc)))
            return []
        return [
            Sample(loop, scenario.name, metric, family, peer, repetition, value)
            for metric, values in measured.items()
            for value in values
        ]


def _cores() -> tuple[int | None, int | None]:
    """Return two cores that this process may use; None where there is none."""
    if sys.platform != "linux":
        return None, None
    first, *others = sorted(os.sched_getaffinity(0), reverse=True)
    return first, others[-1] if others else None


def parse(suite: Suite[S], argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a suite's command line."""
    parser = argparse.ArgumentParser(prog=suite.family, description=__doc__)
    add = parser.add_argument
    default_loops = ", ".join(suite.loops)
    add("--scenario", action="append", choices=suite.scenarios, help="default: all")
    add("--peer", action="append", choices=suite.peers, help="default: all; repeatable")
    add("--loop", action="append", choices=LOOPS, help=f"default: {default_loops}")
    add("--repeat", type=int, default=REPETITIONS, help="repetitions, 3 by default")
    add("--scale", type=float, default=1.0, help="factor on how much is measured")
    add("--seed", type=int, default=1, help="seed of the order and the random pauses")
    add("--dir", type=Path, help="folder for files of the run; its disk matters")
    add("--json", type=Path, metavar="FILE", help="write all samples to this file")
    add("--quick", action="store_true", help="measure once and little, as a test")
    suite.arguments(parser)
    return parser.parse_args(argv)
