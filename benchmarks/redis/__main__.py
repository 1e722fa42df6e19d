"""``python -m benchmarks.redis``: the suite on Redis."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.suite import Programs, Suite, run
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
from benchmarks.redis.scenarios import SCENARIOS
from benchmarks.redis.server import Server, server

PEERS = (FLOOR, BLPOP, OURS, MEMORY, REDIS_PY, REDIS_PY_FAST, RUEIDIS)
GO_SOURCE = Path(__file__).parent / "go"
GO_BUILD_TIMEOUT = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the report, and return the exit code."""
    suite = Suite(
        family="benchmarks.redis",
        peers=PEERS,
        scenarios=SCENARIOS,
        bars=BARS,
        server=_server,
        versions=_versions,
        foreign=frozenset({RUEIDIS}),
        programs=_programs,
    )
    return run(suite, argv)


def _server(_: Path, __: argparse.Namespace) -> AbstractContextManager[Server]:
    return server()


def _programs(folder: Path, peers: set[str]) -> Programs:
    if not peers:
        return {}, []
    built = _build_go(folder)
    if isinstance(built, Path):
        return {RUEIDIS: built}, []
    return {}, [f"{RUEIDIS} is left out: {built}."]


def _build_go(folder: Path) -> Path | str:
    """Return the program in Go, built into ``folder``; or why there is none."""
    go = shutil.which("go")
    if go is None:
        return "there is no go on PATH"
    program = folder / "peer"
    try:
        ran = subprocess.run(
            [go, "build", "-o", str(program), "."],
            cwd=GO_SOURCE,
            capture_output=True,
            text=True,
            check=False,
            timeout=GO_BUILD_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return "go build took too long"
    if ran.returncode != 0:
        return f"go build failed ({ran.stderr.strip().splitlines()[-1]})"
    return program


def _versions(running: Server) -> dict[str, object]:
    return {
        "redis-server": running.info("server")["redis_version"],
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }


if __name__ == "__main__":
    sys.exit(main())
