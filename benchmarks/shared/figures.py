"""Samples, looked up and put in proportion."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.sample import Sample


class NotMeasured(Exception):
    """Nothing is there of what was asked for."""


class Figures:
    """All samples of a run."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._values: dict[tuple[str, str, str, str], dict[int, list[float]]] = {}
        for s in samples:
            key = s.scenario, s.metric, s.peer, s.loop
            repetitions = self._values.setdefault(key, {})
            repetitions.setdefault(s.repetition, []).append(s.value)

    def values(
        self, scenario: str, metric: str, peer: str, loop: str = "asyncio"
    ) -> list[float]:
        """All of them, of all repetitions.

        Raises:
            NotMeasured: there are none.
        """
        return [
            value
            for values in self._found(scenario, metric, peer, loop).values()
            for value in values
        ]

    def median(
        self, scenario: str, metric: str, peer: str, loop: str = "asyncio"
    ) -> float:
        """The middle one.

        Raises:
            NotMeasured: there is none.
        """
        return statistics.median(self.values(scenario, metric, peer, loop))

    def ratio(self, scenario: str, metric: str, peer: str, to: str) -> float:
        """The median of the ratios within the repetitions.

        So what slowed down a whole repetition slows down both sides of it.

        Raises:
            NotMeasured: one side is missing.
        """
        ours = self._found(scenario, metric, peer, "asyncio")
        theirs = self._found(scenario, metric, to, "asyncio")
        return statistics.median(
            statistics.median(ours[n]) / statistics.median(theirs[n])
            for n in ours.keys() & theirs.keys()
        )

    def _found(
        self, scenario: str, metric: str, peer: str, loop: str
    ) -> dict[int, list[float]]:
        found = self._values.get((scenario, metric, peer, loop))
        if not found:
            raise NotMeasured
        return found


def percentile(values: Sequence[float], per_cent: int) -> float:
    """Between the values that there are."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[per_cent - 1]
