"""From samples to a table and a JSON file."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.sample import Sample

PACKAGES = ("aiorwlock-remote", "aiorwlock", "anyio", "filelock", "trio", "uvloop")


@dataclass(frozen=True)
class Row:
    """A peer in a scenario; ``times_floor``: divided by the floor of the same run."""

    loop: str
    scenario: str
    metric: str
    family: str
    peer: str
    median: float
    least: float
    most: float
    times_floor: float | None
    repetitions: int


def rows(samples: Sequence[Sample], floors: dict[tuple[str, str], str]) -> list[Row]:
    """One row for each peer; ``floors``: (loop, family) → the floor's name.

    The ratio is the median of the ratios within each repetition, so that what slowed
    down a whole repetition slows down both sides of it.
    """
    return [_row(group, samples, floors) for group in _groups(samples)]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, one table for each loop and metric."""
    lines: list[str] = []
    title = None
    for row in sorted(rows, key=lambda r: (r.loop, r.scenario, r.metric, r.family)):
        if title != (title := (row.loop, row.scenario, row.metric)):
            lines += [
                "",
                f"**{row.loop}, {row.scenario}**",
                "",
                f"| lock | {row.metric} | from … to | of floor |",
                "| --- | ---: | ---: | ---: |",
            ]
        ratio = "" if row.times_floor is None else f"{row.times_floor:.2f}"
        span = f"{_short(row.least)} … {_short(row.most)}"
        lines.append(f"| {row.peer} | {_short(row.median)} | {span} | {ratio} |")
    return "\n".join(lines).strip()


def surroundings(folder: Path) -> dict[str, object]:
    """The machine in general terms, versions, and what a sync to disk takes there."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "fsync_us": round(_fsync(folder)),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": _sqlite(),
        "packages": {name: version(name) for name in PACKAGES},
        "command": ["python", "-m", "benchmarks.run", *sys.argv[1:]],
    }


def _groups(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples:
        key = sample.loop, sample.scenario, sample.metric, sample.family, sample.peer
        groups.setdefault(key, []).append(sample)
    yield from groups.values()


def _row(
    group: list[Sample], samples: Sequence[Sample], floors: dict[tuple[str, str], str]
) -> Row:
    first, values = group[0], [sample.value for sample in group]
    timed = first.metric.endswith("µs")
    floor = floors.get((first.loop, first.family)) if timed else None
    under = {
        s.repetition: s.value
        for s in samples
        if (s.loop, s.scenario, s.metric, s.peer)
        == (first.loop, first.scenario, first.metric, floor)
    }
    ratios = [s.value / under[s.repetition] for s in group if s.repetition in under]
    return Row(
        loop=first.loop,
        scenario=first.scenario,
        metric=first.metric,
        family=first.family,
        peer=first.peer,
        median=statistics.median(values),
        least=min(values),
        most=max(values),
        times_floor=statistics.median(ratios) if ratios else None,
        repetitions=len(values),
    )


def _short(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [ln.partition(":")[2] for ln in text.splitlines() if "model name" in ln]
    return names[0].strip() if names else platform.processor()


def _fsync(folder: Path, times: int = 30) -> float:
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - started) * 1e6)
    return statistics.median(took)


def _sqlite() -> str:
    import sqlite3  # noqa: PLC0415 - only its version

    return sqlite3.sqlite_version
