"""The evidence page, made of the evidence alone: ``python -m tests.soak.page``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template
from typing import Any

from tests.faults.workers import ROOT
from tests.soak.counts import OPERATIONS, OUTCOMES

FOLDER = ROOT / "docs" / "evidence"
TEMPLATE = Path(__file__).with_name("page.md")
OPERATIONS_BAR, FAULTS_BAR = 1_000_000, 1_000
DID = (
    "grants lost",
    "acquires failed",
    "not granted in time",
    "accesses refused",
)
"""What a fault can do, as the judge counts it."""

Run = dict[str, Any]


def runs(folder: Path) -> list[Run]:
    """Return the runs of a folder, in the order of their names."""
    return [
        json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    ]


def faults(run: Run) -> int:
    return sum(kind["count"] for kind in run["faults"].values())


def render(found: list[Run]) -> str:
    """Return the page."""
    template = Template(TEMPLATE.read_text("utf-8"))
    return template.substitute(
        totals="\n".join(totals(found)),
        runs="\n".join(run_rows(found)),
        details="\n".join(line for run in found for line in details(run)),
    )


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' for _ in names)} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def totals(found: list[Run]) -> Iterator[str]:
    """Yield the sums of each store, beside the bar."""
    head = ("store", "runs", "hours", "operations", "faults", "violations", "bar")
    rows = []
    for store in sorted({run["store"] for run in found}):
        of_store = [run for run in found if run["store"] == store]
        operations = sum(run["operations"] for run in of_store)
        count = sum(faults(run) for run in of_store)
        met = operations >= OPERATIONS_BAR and count >= FAULTS_BAR
        rows.append(
            (
                store,
                len(of_store),
                f"{sum(run['seconds'] for run in of_store) / 3600:.1f}",
                f"{operations:,}",
                f"{count:,}",
                sum(len(run["judge"]["violations"]) for run in of_store),
                "met" if met else "missed",
            )
        )
    yield from table(head, rows)


def run_rows(found: list[Run]) -> Iterator[str]:
    head = (
        *("began", "store", "seed", "seconds", "operations", "faults", "grants"),
        *("grants lost", "violations", "two holders that only the fence tells apart"),
        *("passed by, at most", "left in the store", "memory"),
    )
    rows = []
    for run in found:
        judge = run["judge"]
        lost = sum(what.get("grants lost", 0) for what in judge["did"].values())
        flat = all(usage["flat"] for usage in run["usage"].values())
        whole = run["ended"] and not run["problems"]
        rows.append(
            (
                run["began"],
                run["store"],
                run["seed"],
                f"{run['seconds']:,}",
                f"{run['operations']:,}",
                f"{faults(run):,}",
                f"{judge['counts'].get('grants', 0):,}",
                f"{lost:,}",
                len(judge["violations"]),
                sum(judge["judged by the fence only"].values()),
                f"{judge['most passed by']} of {judge['turns compared']:,}",
                "nothing" if whole else "the run was interrupted",
                "flat" if flat else "grows",
            )
        )
    yield from table(head, rows)


def details(run: Run) -> Iterator[str]:
    """Yield the section of one run."""
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    yield f"### {run['store']}, {run['began']}"
    yield ""
    yield f"`{run['command']}`, commit {run['commit']}. {versions}."
    yield (
        f"{run['machine']}, {run['cores']} cores; load"
        f" {run['load at the beginning'][0]} at the beginning,"
        f" {run['load at the end'][0]} at the end."
        f" Store: {run['setting']}; lease {run['lease']:g} s."
        f" {run['processes']} processes of {run['tasks']} tasks,"
        f" {run['processes started']} were started. Left out: {run['left out']}."
    )
    somebody, everybody = run["bounds"]
    entered = run["everybody entered after"]
    yield (
        f"After a fault somebody enters within {somebody:g} s (bound); in a quiet spell"
        f" every process and every hot name within {everybody:g} s (bound;"
        f" {entered.get('median', 0):g} s in the median,"
        f" {entered.get('longest', 0):g} s at most)."
    )
    if "judged again" in run:
        yield run["judged again"]
    for problem in run["problems"]:
        yield f"**{problem}**"
    if "remark" in run:  # added by hand: what was found out afterwards
        yield run["remark"]
    yield ""
    yield from table(
        (
            *("fault", "count", "seconds in force", "judged by"),
            *("entered after: median", "longest", *DID),
        ),
        _fault_rows(run),
    )
    yield ""
    calls = run["calls"]
    shown = (f"{name} {calls[name]:,}" for name in (*OPERATIONS, *OUTCOMES))
    yield f"Calls and outcomes: {', '.join(shown)}."
    yield ""
    yield from table(
        ("process", "memory, early", "memory, late", "files, early", "files, late"),
        (
            (place, *(f"{kb / 1024:.1f} MB" for kb in use["memory kB"]), *use["files"])
            for place, use in sorted(run["usage"].items())
        ),
    )
    yield ""


def _fault_rows(run: Run) -> Iterator[tuple[object, ...]]:
    did = run["judge"]["did"]
    for kind, fault in run["faults"].items():
        entered = fault["entered after"]
        yield (
            kind,
            f"{fault['count']:,}",
            f"{fault['seconds in force']:g}",
            "the fence" if fault["fence only"] else "all",
            f"{entered.get('median', 0):.3f} s",
            f"{entered.get('longest', 0):.3f} s",
            *(f"{did.get(kind, {}).get(what, 0):,}" for what in DID),
        )
    calm = did.get("no fault", {})
    counts = (f"{calm.get(what, 0):,}" for what in DID)
    yield ("no fault", "", "", "all", "", "", *counts)


def main(folder: Path = FOLDER) -> None:
    (folder / "index.md").write_text(render(runs(folder)), "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
