"""A database server that is killed, restarted and cut off while locks are held."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pymysql
import pytest

from tests.faults.shared_store import FourWorkers, acquit, clashes
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.long import RUNS as LONG_ONES_RUN
from tests.servers.mariadb import Mariadb, connected
from tests.servers.postgresql import Postgresql

pytestmark = pytest.mark.slow

Database = Postgresql | Mariadb

DEADLOCK = 1213
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'aiorwlock_remote'
"""


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Database:
    started: Database = request.getfixturevalue(f"start_{request.param}")()
    return started


def cut(server: Database) -> None:
    """All sessions but ours."""
    if isinstance(server, Postgresql):
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(CUT)
        return
    query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
    with connected(server.url) as connection, connection.cursor() as cursor:
        cursor.execute(f"{query} AND id <> CONNECTION_ID()")
        for (number,) in cursor.fetchall():
            with suppress(pymysql.OperationalError):  # gone by itself
                cursor.execute(f"KILL {number}")


def cross(url: str) -> bool:
    """Lock the two tables' rows the other way round; whether that was a deadlock."""
    with connected(url, autocommit=False) as foreign, foreign.cursor() as cursor:
        try:
            cursor.execute("SELECT ticket FROM mutex_locks FOR UPDATE")
            time.sleep(0.02)
            cursor.execute("SELECT version FROM doormans FOR UPDATE")
        except pymysql.OperationalError as exc:
            return bool(exc.args[0] == DEADLOCK)
        else:
            return False
        finally:
            foreign.rollback()


def test_killed_stopped_and_cut_off(
    server: Database, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    deadlocks = 0
    with WorkerPool(server.url, tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start()
        workers.goes_on("begun")
        workers.outlives(server, partial(cut, server))
        if not isinstance(server, Postgresql):
            deadlocks = sum(cross(server.url) for _ in range(20))
            workers.goes_on("crossed")
        workers.takes_turns(100 if LONG_ONES_RUN else 30)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(workers.gaps, verdict.grants, deadlocks)


def test_the_judge_sees_who_does_not_ask(server: Database, tmp_path: Path) -> None:
    """The control: one of the processes locks something else."""
    with WorkerPool(server.url, tmp_path) as pool:
        assert "exclusion" in clashes(pool)
