"""Processes whose connections are dropped, killed and swallowed while they lock.

For a longer run: ``ORACLE_FAULTS_SECONDS=60 pytest tests/faults/test_oracle.py``.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.backends.oracle.programs import make_tables, seats
from tests.faults.shared_store import LOOPS, FourWorkers, acquit, clashes
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge
from tests.servers.oracle.client import OracleUser

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("ORACLE_FAULTS_SECONDS", "12"))
SWAP = "n_record"  # in no other statement


def strike(user: OracleUser, workers: FourWorkers, chance: random.Random) -> None:
    """One thing goes wrong."""
    match chance.choice(["lost", "lost", "drop", "kill", "end", "hole", "process"]):
        case "lost":  # carried out, and never answered
            user.rule("after", "drop", SWAP, times=chance.randint(1, 5))
        case "drop":
            user.drop()
        case "kill":
            user.kill()
        case "end":
            user.end()
        case "hole":
            user.hole(chance.choice(["in", "out", "both"]))
            time.sleep(chance.uniform(0.1, 1.5))
            user.hole("")
        case _:
            workers.pool.kill(chance.choice(workers.pool.names))
            user.well()  # who opens a store and loses it has not begun
            workers.pool.start(loop=chance.choice(LOOPS), **workers.plan)


def test_four_processes_lock_while_answers_are_lost(
    oracle_user: OracleUser, tmp_path: Path, go_judge: GoJudge
) -> None:
    """No fence goes back, nothing comes between the accesses of a session."""
    make_tables(oracle_user)
    user, chance, struck = oracle_user.at("19c"), random.Random(7), 0
    with WorkerPool(f"{user.url}?call_timeout=2", tmp_path) as pool:
        workers = FourWorkers(pool)
        workers.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            strike(user, workers, chance)
            struck += 1
            time.sleep(chance.uniform(0.05, 0.5))
        user.well()
        workers.goes_on("well")
        workers.takes_turns(30)
        events = workers.end()
    verdict = acquit(events, tmp_path, go_judge)
    print(struck, verdict.grants, workers.gaps)
    assert struck > 5
    assert len(seats(user)) <= 1  # what the last ones held when they were killed


def test_a_process_that_locks_something_else_is_found(
    oracle_user: OracleUser, tmp_path: Path, go_judge: GoJudge
) -> None:
    """The control: one of the processes locks something else."""
    make_tables(oracle_user)
    with WorkerPool(oracle_user.at("19c").url, tmp_path) as pool:
        assert "exclusion" in clashes(pool)
    assert go_judge(sorted(tmp_path.glob("*.jsonl")), 3000).violations
