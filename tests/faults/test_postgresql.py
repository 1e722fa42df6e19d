"""A PostgreSQL server that is killed, restarted and cut off while locks are held."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.faults.shared_store import FourWorkers, acquit, clashes
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.fix_postgresql import StartPostgresql

pytestmark = pytest.mark.slow

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'aiorwlock_remote'
"""


def cut(url: str) -> None:
    """All sessions of ours."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CUT)


def test_killed_stopped_and_cut_off(
    start_postgresql: StartPostgresql, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    server = start_postgresql()
    with WorkerPool(server.url, tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start()
        workers.goes_on("begun")
        workers.outlives(server, lambda: cut(server.url))
        workers.takes_turns(100)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(workers.gaps, verdict.grants)


def test_the_judge_sees_who_does_not_ask(
    start_postgresql: StartPostgresql, tmp_path: Path
) -> None:
    """The control: one of the processes locks something else."""
    with WorkerPool(start_postgresql().url, tmp_path) as pool:
        assert "exclusion" in clashes(pool)
