"""Measure all scenarios of a suite, tell which bars hold.

Each repetition goes once through all peers of a scenario, in an order of its own, so
that a slow minute of the machine hits all of them. Bars compare within one run.
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
from typing import Generic, TypeVar

from benchmarks.report import surroundings
from benchmarks.sample import Sample
from benchmarks.shared.bars import Bar, verdicts
from benchmarks.shared.figures import Figures
from benchmarks.shared.report import bars, tables
from benchmarks.shared.scenario import AnyServer, Round, Scenario

S = TypeVar("S", bound=AnyServer)

REPETITIONS = 3

Programs = tuple[dict[str, Path], list[str]]
"""What is to be run for a peer; and what is to be said of those that are missing."""


def _none(folder: Path, peers: set[str]) -> Programs:
    del folder, peers
    return {}, []


@dataclass(frozen=True)
class Suite(Generic[S]):
    """All that is measured on one kind of server.

    ``family``: the package it is in. ``foreign``: peers that are no workers of ours;
    ``programs(folder, peers)`` makes those of them that take part. ``arguments``: of
    the command line, for ``server``.
    """

    family: str
    peers: tuple[str, ...]
    scenarios: dict[str, Scenario[S]]
    bars: tuple[Bar, ...]
    server: Callable[[Path, argparse.Namespace], AbstractContextManager[S]]
    versions: Callable[[S], dict[str, object]]
    foreign: frozenset[str] = frozenset()
    programs: Callable[[Path, set[str]], Programs] = _none
    arguments: Callable[[argparse.ArgumentParser], object] = lambda _: None


def run(suite: Suite[S], argv: Sequence[str] | None = None) -> int:
    """Measure; 0 unless something broke. Bars are told, not judged."""
    options = _options(suite).parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with suite.server(folder, options) as server:
            about = surroundings(folder) | suite.versions(server)
            course = _Course(suite, server, options, folder)
            for scenario in course.scenarios:
                course.measure(scenario)
    found = list(verdicts(suite.bars, Figures(course.samples)))
    shown = [v for v in found if v.holds is not None or not options.scenario]
    print(bars(shown, list(suite.scenarios)))
    print()
    print(tables(course.samples, {s.name: s.title for s in course.scenarios}))
    for note in [*course.notes, *course.failed]:
        print(f"\n{note}")
    if options.json is not None:
        result = {
            "about": about | {"command": ["python", "-m", suite.family, *sys.argv[1:]]},
            "notes": course.notes,
            "failed": course.failed,
            "seed": options.seed,
            "repetitions": course.repetitions,
            "quick": options.quick,
            "bars": [verdict.as_dict() for verdict in found],
            "samples": [sample.as_dict() for sample in course.samples],
        }
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 1 if course.failed else 0


@dataclass
class _Course(Generic[S]):
    """One run: what was chosen, and what came out so far."""

    suite: Suite[S]
    server: S
    options: argparse.Namespace
    folder: Path
    samples: list[Sample] = field(default_factory=list[Sample])
    notes: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        known = self.suite.scenarios
        self.scenarios = [known[name] for name in self.options.scenario or known]
        self.repetitions: int = 1 if self.options.quick else self.options.repeat
        self._chance = random.Random(self.options.seed)
        entrants = {peer for s in self.scenarios for peer, _ in s.entrants}
        self._peers = entrants.intersection(self.options.peer or self.suite.peers)
        foreign = self._peers & self.suite.foreign
        self._programs, notes = self.suite.programs(self.folder, foreign)
        self._peers -= foreign - self._programs.keys()
        self._cores = _cores()
        self.notes += notes
        if None in self._cores:
            text = "Not all that is to run on a certain core could be put there."
            self.notes.append(text)

    def measure(self, scenario: Scenario[S]) -> None:
        """All repetitions of it."""
        order = [entrant for entrant in scenario.entrants if entrant[0] in self._peers]
        samples: list[Sample] = []
        for repetition in range(self.repetitions):
            for entrant in self._chance.sample(order, len(order)):
                samples += self._once(scenario, repetition, *entrant)
        samples.sort(key=lambda s: (order.index((s.peer, s.loop)), s.repetition))
        self.samples += samples

    def _once(
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
        )
        print(f"{scenario.name} {repetition}: {peer}, {loop}", file=sys.stderr)
        try:
            measured = scenario.measure(round_)
        except (AssertionError, RuntimeError) as exc:  # the others go on
            self.failed.append(f"{scenario.name}, {peer}, {loop}: {exc}")
            return []
        return [
            Sample(loop, scenario.name, metric, family, peer, repetition, value)
            for metric, values in measured.items()
            for value in values
        ]


def _cores() -> tuple[int | None, int | None]:
    if sys.platform != "linux":
        return None, None
    first, *others = sorted(os.sched_getaffinity(0), reverse=True)
    return first, others[-1] if others else None


def _options(suite: Suite[S]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=suite.family, description=__doc__)
    add = parser.add_argument
    known, peers = suite.scenarios, suite.peers
    add("--scenario", action="append", choices=known, help="default: all")
    add("--peer", action="append", choices=peers, help="default: all; repeatable")
    add("--repeat", type=int, default=REPETITIONS, help="repetitions, 3 by default")
    add("--seed", type=int, default=1, help="of the order and the random pauses")
    add("--json", type=Path, metavar="FILE", help="write all samples there")
    add("--quick", action="store_true", help="once, and little: does it still run?")
    suite.arguments(parser)
    return parser
