"""The committed data of the page: all values of one run, and where they come from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Figures, NotMeasured, Sample

SIGNIFICANT_DIGITS = 4

Values = dict[str, dict[str, dict[str, list[list[float]]]]]
"""By scenario, peer and metric: the values of each repetition."""


@dataclass(frozen=True)
class Failures:
    """Measurements of a peer that broke."""

    suite: str
    scenario: str
    peer: str
    times: int
    reason: str


@dataclass(frozen=True)
class Data:
    """One run of the page.

    Attributes:
        about: Machine, date, versions, commit and command.
        short: Whether the run was too short, or the machine too busy, for conclusions.
        repetitions: How often each measurement was repeated.
        notes: Peers that were left out, with the reason.
        values: The values of each suite.
    """

    about: dict[str, Any]
    short: bool
    repetitions: int
    notes: list[str]
    failed: list[Failures]
    values: dict[str, Values]

    @classmethod
    def read(cls, file: Path) -> Data:
        """Return the data in a file."""
        content = json.loads(file.read_text(encoding="utf-8"))
        failed = [Failures(**each) for each in content.pop("failed")]
        return cls(**content, failed=failed)

    def write(self, file: Path) -> None:
        """Write the data to a file, a line for each metric of each peer."""
        head = {
            "about": self.about,
            "short": self.short,
            "repetitions": self.repetitions,
            "notes": self.notes,
            "failed": [vars(each) for each in self.failed],
        }
        text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        values = _object(self.values, 4)
        file.write_text(f'{text},\n "values": {values}\n}}\n', encoding="utf-8")

    def figures(self, suite: str) -> Figures:
        """Return the figures of one suite."""
        return Figures(list(self._samples(suite)))

    def samples(self, suite: str) -> list[Sample]:
        """Return the values of one suite as samples."""
        return list(self._samples(suite))

    def _samples(self, suite: str) -> Iterator[Sample]:
        for scenario, peers in self.values.get(suite, {}).items():
            for peer, metrics in peers.items():
                for metric, repetitions in metrics.items():
                    for number, values in enumerate(repetitions):
                        for value in values:
                            yield Sample(
                                "asyncio", scenario, metric, suite, peer, number, value
                            )


def collected(samples: Sequence[Sample], repetitions: int) -> Values:
    """Return samples as values: rounded, by scenario, peer, metric and repetition."""
    values: Values = {}
    for each in samples:
        peers = values.setdefault(each.scenario, {})
        metrics = peers.setdefault(each.peer, {})
        by_repetition = metrics.setdefault(
            each.metric, [[] for _ in range(repetitions)]
        )
        by_repetition[each.repetition].append(_rounded(each.value))
    return values


def _rounded(value: float) -> float:
    rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


def _object(content: Mapping[str, Any], depth: int) -> str:
    """Return JSON with a line for each metric, so that a diff shows what has changed.

    Args:
        content: Mappings of mappings, so many deep.
        depth: Of the mappings that get a line for each item.
    """
    items = [
        f"{_json(name)}: {_object(value, depth - 1) if depth > 1 else _json(value)}"
        for name, value in content.items()
    ]
    return "{\n" + ",\n".join(items) + "\n}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ------------------------------------------------------------------------- summaries


@dataclass(frozen=True)
class Summary:
    """The median of a figure over the repetitions, and how far they are apart."""

    median: float
    least: float
    most: float


def summary(figures: Figures, scenario: str, metric: str, peer: str) -> Summary | None:
    """Return the summary of the medians of the repetitions; None if not measured."""
    try:
        medians = figures.medians(scenario, metric, peer)
    except NotMeasured:
        return None
    return _summary(list(medians.values()))


def ratio(
    figures: Figures, scenario: str, metric: str, peer: str, to: str
) -> Summary | None:
    """Return the summary of the ratios to another peer within each repetition."""
    try:
        ours = figures.medians(scenario, metric, peer)
        theirs = figures.medians(scenario, metric, to)
    except NotMeasured:
        return None
    ratios = [ours[n] / theirs[n] for n in ours.keys() & theirs.keys() if theirs[n]]
    return _summary(ratios) if ratios else None


def _summary(values: list[float]) -> Summary:
    return Summary(statistics.median(values), min(values), max(values))
