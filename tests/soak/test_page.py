"""The evidence page is made of the evidence alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.soak.counts import NAMES
from tests.soak.page import FOLDER, Run, render, runs, totals


@pytest.fixture
def run() -> Run:
    """A run with one fault."""
    return {
        "store": "redis",
        "began": "2026-11-26 17:00 UTC",
        "seed": 1,
        "command": "python -m tests.soak redis 1",
        "commit": "abc",
        "machine": "a processor",
        "cores": 2,
        "versions": {"redis-server": "7"},
        "setting": "appendonly yes",
        "lease": 2.0,
        "left out": "disk full",
        "load at the beginning": [1.0],
        "load at the end": [2.0],
        "seconds": 60,
        "operations": 999_999,
        "calls": dict.fromkeys(NAMES, 3),
        "faults": {
            "server killed": {
                "count": 1000,
                "seconds in force": 2.5,
                "fence only": False,
                "entered after": {"median": 0.1, "longest": 0.25},
            }
        },
        "everybody entered after": {},
        "bounds": [14, 34],
        "processes": 6,
        "tasks": 12,
        "processes started": 7,
        "judge": {
            "counts": {"grants": 5},
            "did": {"server killed": {"grants lost": 17}},
            "violations": [],
            "judged by the fence only": {},
            "turns compared": 4,
            "most passed by": 1,
        },
        "usage": {"0": {"memory kB": [1024, 2048], "files": [9, 9], "flat": True}},
        "problems": [],
        "ended": True,
    }


def test_the_committed_page_is_what_the_committed_evidence_makes() -> None:
    page = (FOLDER / "index.md").read_text("utf-8")
    assert page == render(runs(FOLDER)), "python -m tests.soak.page"


def test_the_page_shows_what_a_fault_did(run: Run) -> None:
    row = "| server killed | 1,000 | 2.5 | all | 0.100 s | 0.250 s | 17 | 0 | 0 | 0 |"
    assert row in render([run])


@pytest.mark.parametrize(("more", "bar"), [(0, "missed"), (1, "met")])
def test_runs_of_a_store_add_up(run: Run, more: int, bar: str) -> None:
    *_, row = totals([run, {**run, "operations": more}])
    assert row == f"| redis | 2 | 0.0 | {999_999 + more:,} | 2,000 | 0 | {bar} |"


def test_files_that_are_no_evidence_are_not_taken(tmp_path: Path, run: Run) -> None:
    (tmp_path / "redis-2026-11-26.json").write_text(json.dumps(run))
    (tmp_path / "redis-2026-11-26-2.new").write_text("{")
    assert runs(tmp_path) == [json.loads(json.dumps(run))]


def test_the_site_names_the_stores_that_have_reached_the_bar() -> None:
    page = " ".join((FOLDER.parent / "tested.md").read_text("utf-8").split())
    page = page.replace("Redis Cluster", "redis-cluster")
    page = page.replace("Redis with Sentinel", "redis-sentinel")
    reached_it = r"faults\. ([\w, -]+) have reached that bar"
    sentence = re.search(rf"{reached_it}; ([\w, -]+) has had a shorter run\.", page)
    assert sentence is not None
    named = [
        set(re.findall(r"[\w-]+", stores.lower())) - {"and"}
        for stores in sentence.groups()
    ]
    rows = [re.split(r" *\| *", line)[1:-1] for line in totals(runs(FOLDER))][2:]
    reached = {row[0] for row in rows if row[-1] == "met"}
    assert named == [reached, {row[0] for row in rows} - reached]
