"""``python -m benchmarks.redis``: the suite on Redis."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

from benchmarks.redis import golang
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
from benchmarks.shared.suite import Programs, Suite, run

PEERS = (FLOOR, BLPOP, OURS, MEMORY, REDIS_PY, REDIS_PY_FAST, RUEIDIS)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 unless something broke. Bars are told, not judged."""
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
    built = golang.build(folder)
    if isinstance(built, Path):
        return {RUEIDIS: built}, []
    return {}, [f"{RUEIDIS} is left out: {built}."]


def _versions(running: Server) -> dict[str, object]:
    return {
        "redis-server": running.info("server")["redis_version"],
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
    }
