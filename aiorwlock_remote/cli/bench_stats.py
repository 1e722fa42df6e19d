"""What was measured, in figures: the middle, the slow end, the rate, the ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import final

FIGURE_KEYS = """\b
Keys of the JSON (times are seconds):
  store, loop, tasks, seconds   what was measured, and for how long in all
  figures     list of: name, meaning, count, median, p90, per_second, ratio
                ratio       the median in plain requests
                per_second  null where turns are made to last
                median, p90, ratio   null if count is 0
"""


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """How long something took, each time, and all of it; seconds.

    ``took`` None: it was made to last, so that the rate would say nothing.
    """

    name: str
    meaning: str
    times: Sequence[float]
    took: float | None


@final
@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the answer; seconds. ``ratio``: the median, in plain requests."""

    name: str
    meaning: str
    count: int
    median: float | None
    p90: float | None
    per_second: float | None
    ratio: float | None


def quantile(times: Sequence[float], part: float) -> float:
    """The smallest of ``times`` that ``part`` of them do not exceed."""
    return sorted(times)[max(0, math.ceil(len(times) * part) - 1)]


def figures(measured: Sequence[Measurement]) -> list[Figure]:
    """A figure for each; the first is the plain request."""
    floor = quantile(measured[0].times, 0.5)
    return [_figure(one, floor) for one in measured]


def _figure(one: Measurement, floor: float) -> Figure:
    count = len(one.times)
    median = quantile(one.times, 0.5) if count else None
    return Figure(
        name=one.name,
        meaning=one.meaning,
        count=count,
        median=median,
        p90=quantile(one.times, 0.9) if count else None,
        per_second=count / one.took if one.took else None,
        ratio=median / floor if median is not None and floor else None,
    )


def as_dict(figure: Figure) -> dict[str, object]:
    """For JSON."""
    return asdict(figure)


HEAD = ("MEDIAN ms", "90 % ms", "PER SECOND", "REQUESTS", "COUNT", "WHAT")


def rows(found: Sequence[Figure]) -> list[tuple[str, ...]]:
    """The head, and a row for each figure; numbers end below each other."""
    cells = [HEAD, *map(_cells, found)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (*(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)), row[-1])
        for row in cells
    ]


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        _number(figure.median, 1e3),
        _number(figure.p90, 1e3),
        _number(figure.per_second),
        _number(figure.ratio),
        str(figure.count),
        figure.meaning,
    )


def _number(value: float | None, unit: float = 1.0) -> str:
    """Two or three digits that mean something; more say nothing about another run."""
    if value is None:
        return "-"
    scaled = value * unit
    return f"{scaled:.{max(0, 2 - _magnitude(scaled))}f}"


def _magnitude(value: float) -> int:
    """0 for 1 to 9.99, 1 for 10 to 99.9, and so on; small values count as 0."""
    return max(0, math.floor(math.log10(value))) if value > 0 else 0
