"""A MariaDB or MySQL that is killed, restarted and cut off while locks are held."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from tests.faults.shared_store import FourWorkers, acquit, clashes
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import connected

pytestmark = pytest.mark.slow

DEADLOCK = 1213


@pytest.fixture(params=["mariadb", "mysql"])
def start(request: pytest.FixtureRequest) -> StartMariadb:
    """Starts a server of either."""
    found: StartMariadb = request.getfixturevalue(f"start_{request.param}")
    return found


def cut(url: str) -> None:
    """All sessions but ours."""
    query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
    with connected(url) as connection, connection.cursor() as cursor:
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
    start: StartMariadb, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    server = start()
    with WorkerPool(server.url, tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start()
        workers.goes_on("begun")
        workers.outlives(server, lambda: cut(server.url))
        deadlocks = sum(cross(server.url) for _ in range(20))
        workers.goes_on("crossed")
        workers.takes_turns(100)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(workers.gaps, verdict.grants, deadlocks)


def test_the_judge_sees_who_does_not_ask(start: StartMariadb, tmp_path: Path) -> None:
    """The control: one of the processes locks something else."""
    with WorkerPool(start().url, tmp_path) as pool:
        assert "exclusion" in clashes(pool)
