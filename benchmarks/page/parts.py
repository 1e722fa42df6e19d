"""The parts of a run: each scenario of a suite, saved as soon as it was measured.

A run that is cut keeps the parts that have ended, and ``--resume`` goes on behind them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.suite import Failure, Run
from benchmarks.page.data import Data, Failures, collected
from benchmarks.page.suites import START_SECONDS, round_seconds

Part = tuple[str, str]
"""Suite and scenario."""
MIN_SECONDS_KNOWN = 60.0
"""Seconds of a run after which its speed tells how long the rest takes."""
OPTIONS = ("commit", "seconds", "quick")
"""What has to be the same in all parts of a page, besides the repetitions."""


class Parts:
    """The files of the parts, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, about: Mapping[str, Any], repetitions: int) -> dict[Part, Data]:
        """Return the parts that were measured, the oldest first.

        Raises:
            SystemExit: A part was measured at another commit, or by other options.
        """
        found: dict[Part, Data] = {}
        for file in sorted(self._folder.glob("*.json")):
            data = Data.read(file)
            same = all(data.about[name] == about[name] for name in OPTIONS)
            if not same or data.repetitions != repetitions:
                sys.exit(
                    f"{file} was measured at another commit or by other options:"
                    " remove it, or start anew without --resume"
                )
            for suite, scenarios in data.values.items():
                for scenario in scenarios:
                    found[suite, scenario] = data
        return dict(sorted(found.items(), key=lambda item: item[1].about["saved"]))

    def write(self, part: Part, data: Data) -> None:
        """Save a part."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data.write(self._file(part))

    def forget(self) -> None:
        """Remove all parts."""
        for file in self._folder.glob("*.json"):
            file.unlink()

    def _file(self, part: Part) -> Path:
        return self._folder / f"{'-'.join(part)}.json"


def joined(parts: Sequence[Data], order: Mapping[str, Sequence[str]]) -> Data:
    """Return one run made of parts, which are in the order of their measurement.

    Args:
        parts: At least one. Machine and load of the run are those of the first.
        order: The scenarios of each suite in the order of the page.
    """
    about: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for part in parts:
        about = part.about | about
        versions |= part.about["versions"]
    values = {
        suite: {
            name: part.values[suite][name]
            for name in scenarios
            for part in parts
            if name in part.values.get(suite, {})
        }
        for suite, scenarios in order.items()
    }
    return Data(
        {**about, "versions": versions},
        any(part.short for part in parts),
        parts[0].repetitions,
        list(dict.fromkeys(note for part in parts for note in part.notes)),
        [failed for part in parts for failed in part.failed],
        {suite: found for suite, found in values.items() if found},
    )


def part_of(
    suite: str, scenario: str, run: Run[Any], failed: Sequence[Failure], about: Data
) -> Data:
    """Return one scenario of a run; ``about`` says what the run is."""
    samples = [sample for sample in run.samples if sample.scenario == scenario]
    reasons: dict[str, list[str]] = {}
    for each in failed:
        reasons.setdefault(each.peer, []).append(each.reason)
    return replace(
        about,
        notes=list(run.notes),
        # Once for each peer, with the last reason.
        failed=[
            Failures(suite, scenario, peer, len(found), found[-1])
            for peer, found in reasons.items()
        ],
        # A scenario in which every peer broke was measured, too.
        values={suite: {scenario: {}} | collected(samples, run.repetitions)},
    )


@dataclass
class Progress:
    """Prints how far a run is, and how long the rest takes; keeps its time limit.

    Attributes:
        plan: How many rounds each part has that is still to be measured.
        scale: Factor on the usual duration of a round.
        limit: Seconds after which no part is to end; None: no limit.
        keep: Saves a part that has ended.
        suite: The suite that is measured now.
    """

    plan: dict[Part, int]
    scale: float
    limit: float | None
    keep: Callable[[Part, Run[Any], Sequence[Failure]], object]
    clock: Callable[[], float] = time.monotonic
    suite: str = ""
    left_out: list[Part] = field(default_factory=list[Part])

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._rounds_done = 0
        # Of the rounds that have ended: what they usually take, and what they took.
        self._usual, self._took = 0.0, 0.0
        self._round_began: float | None = None
        self._started: set[str] = set()

    def starts(self, suite: str, scenarios: Sequence[str]) -> bool:
        """Note that a suite comes next; return False if there is no time for it."""
        self.suite = suite
        self._started.add(suite)
        rest = min(self._rest((suite, name)) for name in scenarios)
        if self._fits(START_SECONDS[suite] + rest):
            return True
        for name in scenarios:
            self._leave_out(name)
        return False

    def gives_up(self, suite: str) -> None:
        """Note that a suite's server does not start."""
        self.plan = {part: n for part, n in self.plan.items() if part[0] != suite}

    def wants(self, scenario: str) -> bool:
        if self._fits(self._rest((self.suite, scenario))):
            return True
        self._leave_out(scenario)
        return False

    def begins(self, scenario: str, repetition: int, peer: str, loop: str) -> None:
        del loop
        self._end_round(scenario)
        left = sum(map(self._rest, self.plan))
        left += sum(
            START_SECONDS[suite]
            for suite in dict.fromkeys(suite for suite, _ in self.plan)
            if suite not in self._started
        )
        number, rounds = self._rounds_done + 1, sum(self.plan.values())
        print(
            f"{_minutes(self._elapsed())}, about {_minutes(left)} left:"
            f" {number} of {self._rounds_done + rounds},"
            f" {self.suite}/{scenario} {repetition}, {peer}",
            file=sys.stderr,
            flush=True,
        )
        self._round_began = self.clock()

    def ended(self, run: Run[Any], scenario: str, failed: Sequence[Failure]) -> None:
        self._end_round(scenario)
        part = self.suite, scenario
        # Rounds are left if a peer is missing, or was given up.
        del self.plan[part]
        self.keep(part, run, failed)

    def _end_round(self, scenario: str) -> None:
        if self._round_began is None:
            return
        part = self.suite, scenario
        self._took += self.clock() - self._round_began
        self._usual += self.scale * round_seconds(*part)
        self._round_began = None
        self._rounds_done += 1
        self.plan[part] = max(0, self.plan[part] - 1)

    def _leave_out(self, scenario: str) -> None:
        part = self.suite, scenario
        del self.plan[part]
        self.left_out.append(part)
        print(f"{'/'.join(part)}: no time is left for it", file=sys.stderr)

    def _fits(self, seconds: float) -> bool:
        return self.limit is None or self._elapsed() + seconds <= self.limit

    def _elapsed(self) -> float:
        return self.clock() - self._began

    def _rest(self, part: Part) -> float:
        """Return about how many seconds the rest of a part takes."""
        usual = self.scale * self.plan[part] * round_seconds(*part)
        # As much slower or faster than usual as the rounds so far were.
        known = self._usual >= MIN_SECONDS_KNOWN
        return usual * self._took / self._usual if known else usual


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02} min"
