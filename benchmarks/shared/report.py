"""From samples to the tables of the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.sample import Sample
from benchmarks.shared.bars import Verdict
from benchmarks.shared.figures import percentile


def bars(verdicts: Sequence[Verdict], order: Sequence[str]) -> str:
    """Each bar, the figure and whether it holds, as Markdown.

    ``order``: of the scenarios.
    """
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
    """All that was measured, a table for each scenario."""
    lines: list[str] = []
    for name, title in titles.items():
        of_it = [sample for sample in samples if sample.scenario == name]
        if of_it:
            lines += ["", f"**{name}: {title}**", "", *_table(of_it)]
    return "\n".join(lines).strip()


def short(value: float) -> str:
    """As many digits as say something."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def _table(samples: Sequence[Sample]) -> Iterator[str]:
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
    """The median; least and most, or of many values the 50th, 90th and 95th."""
    if not values:
        return ""
    if len(values) <= max(repetitions) + 1:
        shown = short(statistics.median(values))
        if len(values) > 1:
            shown += f" ({short(min(values))} … {short(max(values))})"
        return shown
    points = ", ".join(f"p{p} {short(percentile(values, p))}" for p in (50, 90, 95))
    return f"{points} (n = {len(values)})"
