"""What is to be reached: each bar in one line, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.shared.figures import Figures, NotMeasured, percentile

Figure = Callable[[Figures], float]


@dataclass(frozen=True)
class Bar:
    """The figure has to stay within the limit."""

    scenario: str
    what: str
    figure: Figure
    limit: float | Figure
    unit: str = ""

    at_least: ClassVar[bool] = False

    def holds(self, figure: float, limit: float) -> bool:
        """Whether the figure is on the right side."""
        return figure <= limit


@dataclass(frozen=True)
class Minimum(Bar):
    """The figure has to reach the limit."""

    at_least: ClassVar[bool] = True

    def holds(self, figure: float, limit: float) -> bool:
        """Whether the figure is on the right side."""
        return figure >= limit


@dataclass(frozen=True)
class Verdict:
    """What became of a bar; all None if it was not measured."""

    bar: Bar
    figure: float | None = None
    limit: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the figure is on the right side."""
        if self.figure is None or self.limit is None:
            return None
        return self.bar.holds(self.figure, self.limit)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
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
    """Figures of one peer, on asyncio."""

    peer: str

    def ratio(self, scenario: str, metric: str, to: str) -> Figure:
        """See ``Figures.ratio``."""
        return lambda figures: figures.ratio(scenario, metric, self.peer, to)

    def median(self, scenario: str, metric: str) -> Figure:
        """The middle one."""
        return lambda figures: figures.median(scenario, metric, self.peer)

    def most(self, scenario: str, metric: str) -> Figure:
        """The largest one."""
        return lambda figures: max(figures.values(scenario, metric, self.peer))

    def least(self, scenario: str, metric: str) -> Figure:
        """The smallest one."""
        return lambda figures: min(figures.values(scenario, metric, self.peer))

    def percentile(
        self, scenario: str, metric: str, per_cent: int, to: str | None = None
    ) -> Figure:
        """Of all repetitions together; divided by that of another peer's, ``to``."""

        def figure(figures: Figures) -> float:
            found = [
                percentile(figures.values(scenario, metric, peer), per_cent)
                for peer in (self.peer, to)
                if peer is not None
            ]
            return found[0] / found[1] if to is not None else found[0]

        return figure


def verdicts(bars: Sequence[Bar], figures: Figures) -> Iterator[Verdict]:
    """Of every bar, in the order of the list."""
    for bar in bars:
        try:
            limit = bar.limit if isinstance(bar.limit, float) else bar.limit(figures)
            yield Verdict(bar, bar.figure(figures), limit)
        except NotMeasured:
            yield Verdict(bar)
