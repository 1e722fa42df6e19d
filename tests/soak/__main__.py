"""Soak a store: ``python -m tests.soak STORE HOURS``; needs Linux, and to be root.

Writes ``STORE-DATE.json`` to the folder of the evidence, now and then, and at the end.
If something is wrong, it ends at once, keeps the histories, and exits with 1. SIGTERM
ends it early, in order. With ``--plant`` it is the other way round: a run that finds
nothing wrong exits with 1, and no evidence is written.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from aiorwlock_remote import __version__
from tests.faults.workers import ROOT
from tests.servers.network import leave_the_machine
from tests.soak.planted import PLANTED
from tests.soak.run import Soak
from tests.soak.site import machine, started
from tests.soak.stores import SITES

EVIDENCE = ROOT / "docs" / "evidence"


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("store", choices=sorted(SITES))
    parser.add_argument("hours", type=float)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument(
        "--operations", type=int, default=sys.maxsize, help="end after so many"
    )
    parser.add_argument(
        "--faults", type=int, default=0, help="but not before so many faults"
    )
    parser.add_argument("--only", default="", help="faults that begin so, e.g. leader")
    parser.add_argument(
        "--plant", default="", choices=sorted(PLANTED), help="a fault to be found"
    )
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, metavar="FOLDER")
    return parser.parse_args(given)


def free_path(folder: Path, store: str) -> Path:
    """Return the path of the evidence of a run that begins now."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{store}-{datetime.now(UTC):%Y-%m-%d}"
    endings = chain([""], (f"-{number}" for number in count(2)))
    tried = (folder / f"{stem}{ending}.json" for ending in endings)
    return next(path for path in tried if not path.exists())


def commit() -> str:
    """Return the commit of the working copy."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    return output.stdout.strip()


def command_of(given: argparse.Namespace) -> str:
    """Return the command of this run, without paths of this machine."""
    command = f"python -m tests.soak {given.store} {given.hours:g} --seed {given.seed}"
    if given.operations < sys.maxsize:
        command += f" --operations {given.operations} --faults {given.faults}"
    if given.only:
        command += f" --only {given.only}"
    return command


def main() -> None:
    given = arguments(sys.argv[1:])
    logging.disable()  # the faults are reported
    path = free_path(given.evidence, given.store)
    began = datetime.now(UTC)
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{given.store}-"))
    if SITES[given.store].own_network:
        leave_the_machine()
    with started(SITES[given.store]) as site:
        facts: dict[str, Any] = {
            "store": given.store,
            "date": f"{began:%Y-%m-%d}",
            "began": f"{began:%Y-%m-%d %H:%M} UTC",
            "commit": commit(),
            "command": command_of(given),
            "seed": given.seed,
            "machine": machine(),
            "cores": os.cpu_count(),
            "load at the beginning": [round(load, 1) for load in os.getloadavg()],
            "versions": {
                "Python": platform.python_version(),
                "aiorwlock-remote": __version__,
                **site.versions(),
            },
            "setting": site.setting,
            "left out": site.left_out,
            "lease": site.lease,
        }

        def save(figures: dict[str, Any]) -> None:
            if given.plant:
                return
            facts["load at the end"] = [round(load, 1) for load in os.getloadavg()]
            written = path.with_suffix(".new")
            written.write_text(json.dumps(facts | figures, indent=1) + "\n", "utf-8")
            written.rename(path)

        soak = Soak(
            site, folder, given.seed, only=given.only, plant=given.plant, save=save
        )
        signal.signal(signal.SIGTERM, lambda *_: soak.stop())
        figures = soak.run(
            given.hours * 3600, operations=given.operations, faults=given.faults
        )
    print(
        f"{given.plant or path}: {figures['operations']} operations, "
        f"{sum(kind['count'] for kind in figures['faults'].values())} faults, "
        f"{figures['seconds']} s"
    )
    for problem in figures["problems"]:
        print(f"  {problem}")
    found = bool(figures["problems"])
    if found and not given.plant:
        print(f"histories: {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(found is not bool(given.plant))


if __name__ == "__main__":
    main()
