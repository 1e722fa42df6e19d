"""From samples to figures, bars, tables and the description of the machine."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

PACKAGES = ("aiorwlock-remote", "aiorwlock", "anyio", "filelock", "trio", "uvloop")
"""Packages whose versions stand in every result."""


@dataclass(frozen=True)
class Sample:
    """One measured number; ``metric`` ends with the unit of ``value``."""

    loop: str
    scenario: str
    metric: str
    family: str
    peer: str
    repetition: int
    value: float

    def as_dict(self) -> dict[str, object]:
        """Return the sample for JSON."""
        return asdict(self)


# --------------------------------------------------------------------------- figures


class NotMeasured(Exception):
    """A figure was asked for of which there are no samples."""


class Figures:
    """All samples of a run, by scenario, metric and peer.

    Every method raises ``NotMeasured`` if the run has no such samples.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._values: dict[tuple[str, str, str, str], dict[int, list[float]]] = {}
        for s in samples:
            key = s.scenario, s.metric, s.peer, s.loop
            repetitions = self._values.setdefault(key, {})
            repetitions.setdefault(s.repetition, []).append(s.value)

    def values(
        self, scenario: str, metric: str, peer: str, loop: str = "asyncio"
    ) -> list[float]:
        """Return the values of all repetitions."""
        return [
            value
            for values in self._found(scenario, metric, peer, loop).values()
            for value in values
        ]

    def median(
        self, scenario: str, metric: str, peer: str, loop: str = "asyncio"
    ) -> float:
        """Return the median of the values of all repetitions."""
        return statistics.median(self.values(scenario, metric, peer, loop))

    def medians(self, scenario: str, metric: str, peer: str) -> dict[int, float]:
        """Return the median of each repetition, on asyncio."""
        found = self._found(scenario, metric, peer, "asyncio")
        return {n: statistics.median(values) for n, values in found.items()}

    def ratio(self, scenario: str, metric: str, peer: str, to: str) -> float:
        """Return the median of the ratios, on asyncio, of ``peer`` to another peer.

        Each ratio is taken within one repetition: what slows a whole repetition down
        slows both sides of its ratio.
        """
        ours = self.medians(scenario, metric, peer)
        theirs = self.medians(scenario, metric, to)
        return statistics.median(
            ours[n] / theirs[n]
            # A repetition that failed for one of the two has no ratio.
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
    """Return a percentile, interpolated between the values."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[per_cent - 1]


# ------------------------------------------------------------------------------ bars

Figure = Callable[[Figures], float]


@dataclass(frozen=True)
class Bar:
    """A goal: a figure of a scenario that must not exceed a limit."""

    scenario: str
    what: str
    figure: Figure
    limit: float | Figure
    unit: str = ""

    at_least: ClassVar[bool] = False

    def holds(self, figure: float, limit: float) -> bool:
        """Return whether the figure is on the right side of the limit."""
        return figure <= limit


@dataclass(frozen=True)
class Minimum(Bar):
    """A goal: a figure of a scenario that must reach a limit."""

    at_least: ClassVar[bool] = True

    def holds(self, figure: float, limit: float) -> bool:
        return figure >= limit


@dataclass(frozen=True)
class Verdict:
    """A bar with its measured figure and limit; None if they were not measured."""

    bar: Bar
    figure: float | None = None
    limit: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the bar holds; None if it was not measured."""
        if self.figure is None or self.limit is None:
            return None
        return self.bar.holds(self.figure, self.limit)

    def as_dict(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return {
            "scenario": self.bar.scenario,
            "what": self.bar.what,
            "at_least": self.bar.at_least,
            "limit": self.limit,
            "figure": self.figure,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Of:
    """Makes the figures of one peer on asyncio, for the lists of bars."""

    peer: str

    def ratio(self, scenario: str, metric: str, to: str) -> Figure:
        """Return the figure ``Figures.ratio``, of this peer to the peer ``to``."""
        return lambda figures: figures.ratio(scenario, metric, self.peer, to)

    def median(self, scenario: str, metric: str) -> Figure:
        """Return the figure "median of all values"."""
        return lambda figures: figures.median(scenario, metric, self.peer)

    def most(self, scenario: str, metric: str) -> Figure:
        """Return the figure "largest value"."""
        return lambda figures: max(figures.values(scenario, metric, self.peer))

    def least(self, scenario: str, metric: str) -> Figure:
        """Return the figure "smallest value"."""
        return lambda figures: min(figures.values(scenario, metric, self.peer))

    def percentile(
        self, scenario: str, metric: str, per_cent: int, to: str | None = None
    ) -> Figure:
        """Return the figure "percentile of all values", or its ratio to ``to``'s."""

        def figure(figures: Figures) -> float:
            found = [
                percentile(figures.values(scenario, metric, peer), per_cent)
                for peer in (self.peer, to)
                if peer is not None
            ]
            return found[0] / found[1] if to is not None else found[0]

        return figure


def verdicts(bars: Sequence[Bar], figures: Figures) -> Iterator[Verdict]:
    """Yield the verdict of each bar, in the order of ``bars``."""
    for bar in bars:
        try:
            limit = bar.limit if isinstance(bar.limit, float) else bar.limit(figures)
            yield Verdict(bar, bar.figure(figures), limit)
        except NotMeasured:
            # Not silently left out: "not measured" must not read as "holds"
            # (test_what_was_not_measured_is_not_said_to_hold).
            yield Verdict(bar)


# ---------------------------------------------------------------------------- tables


def bar_table(verdicts: Sequence[Verdict], order: Sequence[str]) -> str:
    """Return all verdicts as a Markdown table, by scenario in the given order."""
    lines = [
        "| scenario | what | bar | measured | holds |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for verdict in sorted(verdicts, key=lambda v: order.index(v.bar.scenario)):
        bar = verdict.bar
        holds = {True: "yes", False: "**NO**", None: "not measured"}[verdict.holds]
        sign, unit = "≥" if bar.at_least else "≤", f" {bar.unit}".rstrip()
        limit = "" if verdict.limit is None else f"{sign} {short(verdict.limit)}{unit}"
        figure = "" if verdict.figure is None else f"{short(verdict.figure)}{unit}"
        line = f"| {bar.scenario} | {bar.what} | {limit} | {figure} | {holds} |"
        lines.append(line)
    return "\n".join(lines)


def tables(samples: Sequence[Sample], titles: Mapping[str, str]) -> str:
    """Return a Markdown table for each scenario, with a column for each entrant.

    ``titles`` has the title of each scenario, by name.
    """
    lines: list[str] = []
    for name, title in titles.items():
        of_it = [sample for sample in samples if sample.scenario == name]
        if of_it:
            lines += ["", f"**{name}: {title}**", "", *_columns(of_it)]
    return "\n".join(lines).strip()


def short(value: float) -> str:
    """Return a number with as many digits as another run might repeat."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def _columns(samples: Sequence[Sample]) -> Iterator[str]:
    entrants = list(dict.fromkeys((s.peer, s.loop) for s in samples))
    yield "| metric | " + " | ".join(f"{p}, {loop}" for p, loop in entrants) + " |"
    yield "| --- |" + " ---: |" * len(entrants)
    for metric in dict.fromkeys(sample.metric for sample in samples):
        cells = []
        for entrant in entrants:
            values = [
                s.value
                for s in samples
                if (s.metric, s.peer, s.loop) == (metric, *entrant)
            ]
            cells.append(_cell(values, [s.repetition for s in samples]))
        yield f"| {metric} | " + " | ".join(cells) + " |"


def _cell(values: Sequence[float], repetitions: Sequence[int]) -> str:
    """Return the median, least and most; of many values the 50th, 90th and 95th."""
    if not values:
        return ""
    # One value a repetition, or many values in each.
    if len(values) <= max(repetitions) + 1:
        shown = short(statistics.median(values))
        if len(values) > 1:
            shown += f" ({short(min(values))} … {short(max(values))})"
        return shown
    points = ", ".join(f"p{p} {short(percentile(values, p))}" for p in (50, 90, 95))
    return f"{points} (n = {len(values)})"


FloorOf = Callable[[str, str], str | None]
"""Returns the floor that a peer is compared with on a loop; None: no floor."""


@dataclass(frozen=True)
class Row:
    """One metric of one peer; ``times_floor`` is the ratio to the floor of the run."""

    loop: str
    scenario: str
    metric: str
    peer: str
    median: float
    least: float
    most: float
    times_floor: float | None
    repetitions: int


def rows(samples: Sequence[Sample], floor_of: FloorOf) -> list[Row]:
    """Return a row for each metric of each peer.

    ``times_floor`` is the median of the ratios within the repetitions, as in
    ``Figures.ratio``.
    """
    groups: dict[tuple[str, str, str, str], list[Sample]] = {}
    for s in samples:
        groups.setdefault((s.loop, s.scenario, s.metric, s.peer), []).append(s)
    found = []
    for (loop, scenario, metric, peer), group in groups.items():
        # A ratio of counts or shares would say nothing: only times have a floor.
        floor = floor_of(peer, loop) if metric.endswith("µs") else None
        beneath = {
            s.repetition: s.value
            for s in groups.get((loop, scenario, metric, floor or ""), [])
        }
        ratios = [s.value / beneath[s.repetition] for s in group if beneath]
        values = [s.value for s in group]
        found.append(
            Row(
                loop=loop,
                scenario=scenario,
                metric=metric,
                peer=peer,
                median=statistics.median(values),
                least=min(values),
                most=max(values),
                times_floor=statistics.median(ratios) if ratios else None,
                repetitions=len(values),
            )
        )
    return found


def ratio_tables(rows: Sequence[Row]) -> str:
    """Return a Markdown table for each loop and metric, with a line for each peer."""
    lines: list[str] = []
    title = None
    for row in sorted(rows, key=lambda r: (r.loop, r.scenario, r.metric)):
        if title != (title := (row.loop, row.scenario, row.metric)):
            lines += [
                "",
                f"**{row.loop}, {row.scenario}**",
                "",
                f"| lock | {row.metric} | from … to | of floor |",
                "| --- | ---: | ---: | ---: |",
            ]
        ratio = "" if row.times_floor is None else f"{row.times_floor:.2f}"
        span = f"{short(row.least)} … {short(row.most)}"
        lines.append(f"| {row.peer} | {short(row.median)} | {span} | {ratio} |")
    return "\n".join(lines).strip()


# --------------------------------------------------------------------- surroundings


def surroundings(folder: Path) -> dict[str, object]:
    """Return machine, versions, and the time of a sync to the disk of ``folder``."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "fsync_us": round(_fsync(folder)),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: version(name) for name in PACKAGES},
    }


def command_line(family: str) -> list[str]:
    """Return the command that runs this process again."""
    return ["python", "-m", family, *sys.argv[1:]]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [ln.partition(":")[2] for ln in text.splitlines() if "model name" in ln]
    return names[0].strip() if names else platform.processor()


def _fsync(folder: Path, times: int = 30) -> float:
    """Return the median microseconds of writing 4 kB and syncing them."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - started) * 1e6)
    return statistics.median(took)
