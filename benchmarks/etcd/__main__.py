"""``python -m benchmarks.etcd``: the suite on etcd, and ZooKeeper beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.etcd.adapters import AETCD, FLOOR, KAZOO, MESSAGE, OURS, UNFAIR
from benchmarks.etcd.bars import BARS
from benchmarks.etcd.scenarios import SCENARIOS
from benchmarks.etcd.server import Server, server
from benchmarks.harness.suite import Suite, run


def suite() -> Suite[Server]:
    """Return the suite on etcd."""
    return Suite(
        family="benchmarks.etcd",
        peers=(FLOOR, MESSAGE, OURS, UNFAIR, AETCD, KAZOO),
        scenarios=SCENARIOS,
        bars=BARS,
        server=server,
        versions=_versions,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    return run(suite(), argv)


def _versions(running: Server) -> dict[str, object]:
    return running.about() | {name: version(name) for name in ("aetcd", "kazoo")}


if __name__ == "__main__":
    sys.exit(main())
