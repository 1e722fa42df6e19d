"""``python -m benchmarks.redis``: the suite on Redis."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.suite import Suite, run
from benchmarks.redis.adapters import (
    BLPOP,
    FLOOR,
    MEMORY,
    OURS,
    REDIS_PY,
    REDIS_PY_FAST,
    RUEIDIS,
)
from benchmarks.redis.bars import BARS
from benchmarks.redis.foreign import FOREIGN, programs
from benchmarks.redis.scenarios import SCENARIOS
from benchmarks.redis.server import Server, server

PEERS = (FLOOR, BLPOP, OURS, MEMORY, REDIS_PY, REDIS_PY_FAST, RUEIDIS)


def suite() -> Suite[Server]:
    """Return the suite on Redis."""
    return Suite(
        family="benchmarks.redis",
        peers=PEERS,
        scenarios=SCENARIOS,
        bars=BARS,
        server=_server,
        versions=_versions,
        foreign=FOREIGN,
        programs=programs,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    return run(suite(), argv)


def _server(_: Path, __: argparse.Namespace) -> AbstractContextManager[Server]:
    return server()


def _versions(running: Server) -> dict[str, object]:
    return {
        "redis-server": running.info("server")["redis_version"],
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }


if __name__ == "__main__":
    sys.exit(main())
