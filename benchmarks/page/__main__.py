"""``nox -s bench -- page``: measure all suites in one run, and write the page.

Each scenario of a suite is saved as soon as it was measured, and ``--resume`` goes on
with a run that was cut. With ``--only`` a part is measured, goals and figures are
printed, no page is written.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import MEASURABLE, busy_share
from benchmarks.harness.report import NotMeasured, bar_table, tables
from benchmarks.harness.suite import Failure, Run, measure, parse
from benchmarks.page.data import Data
from benchmarks.page.parts import Part, Parts, Progress, joined, part_of
from benchmarks.page.plots import PLOTS, svg
from benchmarks.page.suites import SUITES, judged, run_order, scenario_names
from benchmarks.page.text import render
from benchmarks.redis.foreign import foreign_versions

COMMAND = "nox -s bench -- page"
NAME = "benchmarks"
"""Of page and data in the folder of the documentation, and of the folder of plots."""
ROOT = Path(__file__).parents[2]
PARTS = ROOT / ".cache" / "benchmarks"
REPETITIONS = 5
SECONDS = 2.0
"""Seconds of a window in which tasks take turns; everything else is scaled alike."""
UNSCALED_SECONDS = 4.0
"""The same in a suite's own run."""
QUIET_SHARE = 0.1
"""Share of the machine's CPU time that others may use before an undisturbed run."""
LOOK_SECONDS = 2.0
"""Seconds in which that share is measured."""
PACKAGES = (
    *("aiorwlock-remote", "redis", "hiredis", "coredis", "pottery"),
    *("python-redis-lock", "asyncpg", "asyncmy", "sqlalchemy-dlock"),
    *("cassandra-driver", "aetcd", "kazoo", "filelock", "anyio"),
)
SERVERS = {
    "redis-server": "redis-server",
    "server_version": "PostgreSQL",
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "sqlite": "SQLite",
    "cassandra": "Cassandra",
    "etcd": "etcd",
    "zookeeper": "ZooKeeper",
}
"""What the suites call the versions of their servers, and what the page does."""
MACHINE = ("processor", "cores", "system", "load", "fsync_us", "python")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the goals, write data and page; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _options().parse_args(words)
    data_file = options.docs / f"{NAME}.json"
    if not options.render:
        data = measured(options, words)
        print(_report(data))
        if options.json is not None:
            data.write(options.json)
        if options.only:
            return 0
        data.write(data_file)
    write_page(Data.read(data_file), options.docs)
    return 0


def measured(options: argparse.Namespace, words: Sequence[str]) -> Data:
    """Run the chosen scenarios of all suites, one suite after the other.

    Raises:
        SystemExit: Nothing was measured.
    """
    repetitions = 1 if options.quick else options.repetitions
    # The load is no measure: it tells of the last minutes, such as of an installation.
    look = MEASURABLE and not options.quick
    busy = busy_share(LOOK_SECONDS) if look else 0.0
    about = {
        "commit": _commit(),
        "command": " ".join([COMMAND, *words]),
        "seconds": options.seconds,
        "quick": options.quick,
        "busy": round(busy, 3),
    }
    # A look at a part of the page leaves the saved results of the whole alone.
    usual = PARTS / "only" if options.only else PARTS
    parts = Parts(options.parts or usual)
    kept: dict[Part, Data] = {}
    if options.resume:
        kept = parts.read(about, repetitions)
    else:
        parts.forget()
    chosen = {
        suite: [name for name in scenarios if (suite, name) not in kept]
        for suite, scenarios in _chosen(options.only).items()
    }
    suites = {name: SUITES[name]() for name in chosen}

    def keep(part: Part, run: Run[Any], failed: Sequence[Failure]) -> None:
        of_run = _described(run.about) | about
        short = repetitions < REPETITIONS or options.seconds < SECONDS
        short = short or busy > QUIET_SHARE
        head = Data(of_run, short, repetitions, [], [], {})
        kept[part] = part_of(*part, run, failed, head)
        parts.write(part, kept[part])

    progress = Progress(
        {
            (suite, name): suites[suite].scenarios[name].rounds(repetitions)
            for suite, scenarios in chosen.items()
            for name in scenarios
        },
        options.seconds / SECONDS,
        None if options.minutes is None else 60 * options.minutes,
        keep,
    )
    notes: list[str] = []
    for name, scenarios in chosen.items():
        if not scenarios or not progress.starts(name, scenarios):
            continue
        arguments = parse(suites[name], _arguments(options, scenarios))
        try:
            measure(suites[name], arguments, progress)
        except SystemExit as exc:  # a server that cannot be started says why
            progress.gives_up(name)
            notes.append(f"{name} is left out: {exc}.")
    notes += [
        f"`{name}` ({suite}) is left out: the run had no time left."
        for suite, name in progress.left_out
    ]
    if not kept:
        sys.exit("nothing was measured: " + " ".join(notes))
    data = joined(list(kept.values()), scenario_names())
    return replace(data, notes=[*data.notes, *notes])


def _described(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return machine, date and versions, given what the suites say of themselves."""
    servers = {shown: found[name] for name, shown in SERVERS.items() if name in found}
    packages = {name: version(name) for name in PACKAGES}
    now = datetime.now(UTC)
    return {name: found[name] for name in MACHINE} | {
        "date": f"{now:%Y-%m-%d}",
        "saved": now.isoformat(),
        "versions": servers | packages | foreign_versions(),
    }


def write_page(data: Data, docs: Path) -> None:
    """Write the page and its plots; a plot without any data is no file."""
    folder = docs / NAME
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = render(data)
    for name in PLOTS:
        try:
            drawn = svg(name, data)
        except NotMeasured:
            image = rf"!\[.*\]\({NAME}/{name}\.svg\)"
            text = re.sub(image, "(This run has no figures for this plot.)", text)
            continue
        (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
    (docs / f"{NAME}.md").write_text(text, encoding="utf-8")


def _report(data: Data) -> str:
    parts = []
    for suite, verdicts in judged(data).items():
        shown = [verdict for verdict in verdicts if verdict.holds is not None]
        if shown:
            parts.append(f"{suite}\n\n{bar_table(shown, scenario_names()[suite])}")
    for suite in data.values:
        titles = {each.name: each.title for each in SUITES[suite]().scenarios.values()}
        parts.append(tables(data.samples(suite), titles))
    parts += data.notes
    parts += [
        f"{each.suite}, {each.scenario}, {each.peer}, {each.times} times: {each.reason}"
        for each in data.failed
    ]
    return "\n\n".join(parts)


def _chosen(only: Sequence[str]) -> dict[str, list[str]]:
    """Return the scenarios of each suite that ``--only`` chooses: all, if it is empty.

    A word is a suite, a scenario, or both with a slash; hyphens may be left out.
    """
    wanted = {_plain(word) for word in only}
    known: set[str] = set()
    chosen: dict[str, list[str]] = {}
    for suite, scenarios in run_order().items():
        for scenario in scenarios:
            names = {suite, _plain(scenario), f"{suite}/{_plain(scenario)}"}
            known |= names
            if not wanted or wanted & names:
                chosen.setdefault(suite, []).append(scenario)
    if wanted - known:
        sys.exit(f"--only: no such suite or scenario: {', '.join(wanted - known)}")
    return chosen


def _plain(word: str) -> str:
    return word.replace("-", "")


def _arguments(options: argparse.Namespace, scenarios: Sequence[str]) -> list[str]:
    """Return the command line of a suite."""
    words = [f"--scenario={name}" for name in scenarios]
    words += [f"--repeat={options.repetitions}", f"--seed={options.seed}"]
    words += [f"--scale={options.seconds / UNSCALED_SECONDS}"]
    return [*words, "--quick"] if options.quick else words


def _commit() -> str:
    """Return the commit; ``-dirty`` if something but the page differs from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    ran = subprocess.run(
        [git, "describe", "--always", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # A run that is resumed may have written the page of its first part.
    differs = subprocess.run(
        [git, "diff", "--quiet", "HEAD", "--", ".", f":!docs/{NAME}*"],
        cwd=ROOT,
        check=False,
    )
    commit = ran.stdout.strip() or "unknown"
    return f"{commit}-dirty" if differs.returncode else commit


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("--repetitions", type=int, default=REPETITIONS, help="5 by default")
    add("--seconds", type=float, default=SECONDS, help="of a window; 2 by default")
    add("--seed", type=int, default=1, help="seed of the order and the random pauses")
    add("--only", action="append", default=[], metavar="SUITE, SCENARIO or both/…")
    add("--resume", action="store_true", help="measure what an earlier run did not")
    add("--minutes", type=float, help="leave out what would take longer than that")
    add("--parts", type=Path, help="folder of the scenarios' results")
    add("--json", type=Path, metavar="FILE", help="write the data to this file, too")
    add("--render", action="store_true", help="write the page from the committed data")
    add("--docs", type=Path, default=ROOT / "docs", help="folder of page and data")
    add("--quick", action="store_true", help="measure once and little, as a test")
    return parser


if __name__ == "__main__":
    sys.exit(main())
