"""Processes whose connections are dropped, killed and swallowed while they lock.

For a longer run: ``ORACLE_FAULTS_SECONDS=60 pytest tests/faults/test_oracle.py``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.oracle.programs import make_tables, seats
from tests.faults.counter import Counter
from tests.faults.shared_store import LOOPS, FourWorkers, acquit, clashes
from tests.faults.workers import ROOT, WorkerPool
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


# ------------------------------------------------------------------------------
# Two processes of ours and two of plain python-oracledb count: nothing is lost.


@dataclass(frozen=True)
class Counts:
    """By all of them. ``torn``: how often it changed under a reader of ours."""

    counted: int
    ours: int
    theirs: int
    reads: int
    torn: int


def hammered(user: OracleUser, path: Path, seconds: str, *, locks: str) -> Counts:
    """All at the same time."""
    counts = [
        ["counter", user.url, str(path), seconds, loop] for loop in ("asyncio", "trio")
    ]
    plain = ["plain_oracle", json.dumps(user.login), str(path), seconds, locks]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", f"tests.faults.{program}", *arguments],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
            )
            for program, *arguments in (*counts, plain, plain)
        ]
        reports = [json.loads(process.communicate()[0]) for process in processes]
    ours, theirs = reports[:2], reports[2:]
    counter = Counter(path)
    counted = counter.read()
    counter.close()
    writes, reads, torn = (
        sum(one[what] for one in ours) for what in ("writes", "reads", "torn")
    )
    return Counts(counted, writes, sum(theirs), reads, torn)


def test_no_update_is_lost(oracle_user: OracleUser, tmp_path: Path) -> None:
    make_tables(oracle_user)
    user = oracle_user.at("19c")
    counts = hammered(user, tmp_path / "counter", "4", locks="yes")
    assert counts.counted == counts.ours + counts.theirs
    assert counts.torn == 0
    assert min(counts.ours, counts.theirs, counts.reads) > 0, counts
    assert seats(user) == []


def test_without_their_lock_updates_are_lost(
    oracle_user: OracleUser, tmp_path: Path
) -> None:
    """The control: the plain ones do not ask."""
    make_tables(oracle_user)
    counts = hammered(oracle_user.at("19c"), tmp_path / "counter", "2", locks="no")
    assert counts.counted < counts.ours + counts.theirs
    assert counts.torn > 0
