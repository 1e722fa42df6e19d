"""Two processes of ours and two of plain python-oracledb count: nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.oracle.programs import make_tables, seats
from tests.faults.counter import Counter
from tests.faults.workers import ROOT
from tests.servers.oracle.client import OracleUser

pytestmark = pytest.mark.slow


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
