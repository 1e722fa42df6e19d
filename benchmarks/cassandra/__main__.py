"""``python -m benchmarks.cassandra``: the suite on Cassandra."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import version

from benchmarks.cassandra.adapters import (
    CALLS,
    EAGER,
    FLOOR,
    FLOOR_READ,
    NAIVE,
    OURS,
    UNFAIR,
    WOKEN,
)
from benchmarks.cassandra.bars import BARS
from benchmarks.cassandra.scenarios import SCENARIOS
from benchmarks.cassandra.server import Server, server
from benchmarks.harness.suite import Suite, run


def suite() -> Suite[Server]:
    """Return the suite on Cassandra."""
    return Suite(
        family="benchmarks.cassandra",
        peers=(FLOOR, FLOOR_READ, EAGER, NAIVE, OURS, WOKEN, UNFAIR, CALLS),
        scenarios=SCENARIOS,
        bars=BARS,
        server=server,
        versions=_versions,
        arguments=_arguments,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    return run(suite(), argv)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--ring", action="store_true", help="three nodes, not one")


def _versions(running: Server) -> dict[str, object]:
    return {
        "cassandra": running.version(),
        "nodes": running.nodes,
        "cassandra-driver": version("cassandra-driver"),
    }


if __name__ == "__main__":
    sys.exit(main())
