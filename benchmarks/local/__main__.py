"""``python -m benchmarks.local``: the suite of locks that need no server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.suite import Suite, run
from benchmarks.local.adapters import PEERS, floor_of
from benchmarks.local.scenarios import SCENARIOS, Folder


def suite() -> Suite[Folder]:
    """Return the suite of locks that need no server."""
    return Suite(
        family="benchmarks.local",
        peers=PEERS,
        scenarios=SCENARIOS,
        bars=(),
        server=_folder,
        versions=lambda _: {},
        loops=("asyncio",),
        floor_of=floor_of,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    return run(suite(), argv)


@contextmanager
def _folder(path: Path, options: argparse.Namespace) -> Iterator[Folder]:
    del options
    yield Folder(path)


if __name__ == "__main__":
    sys.exit(main())
