"""The soak, for seconds: it finds nothing on SQLite, and what is planted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote.testing.history import (
    Ask,
    Event,
    EventMode,
    Granted,
    Lost,
    Refused,
    Released,
    Releasing,
    encode_event,
)
from tests.second_look import second_look
from tests.soak import run
from tests.soak.judge import SECOND, FaultLog, Judge
from tests.soak.names import LIMIT
from tests.soak.planted import OTHER_NAMES
from tests.soak.run import Soak
from tests.soak.site import Site, started
from tests.soak.stores import Sqlite

# ------------------------------------------------------------------------ a run


class Quick(Sqlite):
    lease = 0.6


@pytest.fixture
def site() -> Iterator[Site]:
    with started(Quick) as found:
        yield found


def soaked(site: Site, folder: Path, *, faults: int, plant: str = "") -> dict[str, Any]:
    """Run two processes for some seconds."""
    soak = Soak(
        *(site, folder, 20261126),
        loops=("threads", "trio"),
        steady=1,
        tasks=3,
        quiet_every=faults,
        plant=plant,
    )
    return soak.run(60.0, operations=500, faults=faults)


@second_look("its judge allows so many seconds for each entry and loss")
@pytest.mark.slow
def test_the_soak_finds_no_problem(site: Site, tmp_path: Path) -> None:
    figures = soaked(site, tmp_path, faults=5)
    assert figures["problems"] == []
    assert sum(fault["count"] for fault in figures["faults"].values()) >= 5
    assert figures["operations"] > 500
    assert figures["judge"]["counts"]["grants"] > 200


@pytest.mark.slow
def test_the_soak_finds_a_client_that_locks_something_else(
    site: Site, tmp_path: Path
) -> None:
    """The control: what such a client does to hot names is no exclusion."""
    figures = soaked(site, tmp_path, faults=1, plant=OTHER_NAMES)
    assert any("exclusion" in problem for problem in figures["problems"])


@pytest.mark.slow
def test_the_soak_finds_that_the_judge_failed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "JUDGE", [sys.executable, "-c", "raise SystemExit(3)"])
    figures = soaked(site, tmp_path, faults=1)
    assert any("judge" in problem for problem in figures["problems"])


# -------------------------------------------------------------------- the judge


def held(
    name: str, begin: float, end: float, fence: int, *, asked: float, mode: str = "W"
) -> Iterator[Event]:
    """Yield the events of a grant; seconds."""
    chosen: EventMode = "W" if mode == "W" else "R"
    who = ("p", name, f"{fence:06x}{round(begin * 10):06x}")
    asked_at, at, until = (round(time * SECOND) for time in (asked, begin, end))
    yield Ask(*who, asked_at, chosen)
    yield Granted(*who, at, asked_at, chosen, fence, until)
    yield Releasing(*who, until, until)
    yield Released(*who, until, until, True)


WINDOW = 0.2
"""Seconds in which who is next has to ask."""


def judged(folder: Path, *histories: Iterator[Event], faults: str = "") -> Judge:
    (folder / "faults.jsonl").write_text(faults)
    judge = Judge(FaultLog(folder / "faults.jsonl", 2.0), WINDOW)
    for story in histories:
        judge.read(map(encode_event, story), 1000 * SECOND)
        judge.judge()
    return judge


def fault(
    begun: float, healed: float, *, fence_only: bool, forgets: bool = False
) -> str:
    kept = {"fence_only": fence_only, "forgets": forgets, "wall": 0.0}
    first = {"kind": "x", "begun": round(begun * SECOND), **kept}
    return f"{json.dumps(first)}\n{json.dumps({'healed': round(healed * SECOND)})}\n"


@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ("", {"exclusion"}),
        (fault(0.5, 0.9, fence_only=False), {"exclusion"}),
        (fault(0.5, 0.9, fence_only=True), set[str]()),
    ],
    ids=["no fault", "a fault", "a fault judged by the fence only"],
)
def test_two_holders(tmp_path: Path, faults: str, found: set[str]) -> None:
    """They are a violation, unless a fault explains them that the fence is for."""
    judge = judged(
        tmp_path,
        held("hot/0", 1.0, 3.0, 1, asked=0.9),
        held("hot/0", 2.0, 4.0, 2, asked=1.9),
        faults=faults,
    )
    assert {kind for kind, *_ in judge.violations} == found
    assert len(judge.excused) == (not found)


def test_a_fence_that_falls_after_a_long_time(tmp_path: Path) -> None:
    """Events are dropped; the highest fence is not. No fault explains it."""
    judge = judged(
        tmp_path,
        held("hot/0", 1.0, 1.1, 7, asked=0.9),
        held("hot/0", 2.0, 2.1, 8, asked=1.9),
        held("other/0", 500.0, 500.1, 1, asked=499.9),
        held("hot/0", 501.0, 501.1, 6, asked=500.9),
        faults=fault(500.0, 501.0, fence_only=True),
    )
    assert [kind for kind, *_ in judge.violations] == ["fence"]


@pytest.mark.parametrize(
    ("fence", "mode", "forgets", "violations"),
    [
        (5, "R", True, []),
        (5, "R", False, ["fence"]),
        (6, "R", True, ["fence"]),
        (5, "W", True, ["fence"]),
    ],
    ids=["joined", "nothing was forgotten", "nobody had the fence", "a writer"],
)
def test_readers_join_one_whose_release_was_forgotten(
    tmp_path: Path, fence: int, mode: str, *, forgets: bool, violations: list[str]
) -> None:
    """Their fence is that of the earlier reader; a writer's between them is higher."""
    judge = judged(
        tmp_path,
        held("own/1", 1.0, 1.2, 5, asked=0.9, mode="R"),
        held("own/1", 1.4, 1.5, 7, asked=1.3),
        held("own/1", 1.8, 1.9, fence, asked=1.7, mode=mode),
        faults=fault(0.5, 1.6, fence_only=True, forgets=forgets),
    )
    assert [kind for kind, *_ in judge.violations] == violations
    assert sum(judge.excused.values()) == (not violations)


def test_one_permit_too_many(tmp_path: Path) -> None:
    grants = [
        held("permits/0", 1.0 + number / 10, 2.0, number + 1, asked=0.5)
        for number in range(LIMIT + 1)
    ]
    assert not judged(tmp_path, *grants[:LIMIT]).violations
    grants = [
        held("permits/0", 1.0 + number / 10, 2.0, number + 1, asked=0.5)
        for number in range(LIMIT + 1)
    ]
    assert [kind for kind, *_ in judged(tmp_path, *grants).violations] == ["exclusion"]


def lost(number: int, begin: float) -> Iterator[Event]:
    """Yield the events of a grant of a long name that is lost after a second."""
    who = ("p", "long/0", f"{number:012x}")
    at, over = round(begin * SECOND), round((begin + 1) * SECOND)
    yield Ask(*who, at, "W")
    yield Granted(*who, at, at, "W", number, over)
    yield Lost(*who, over, "expired")


@pytest.mark.parametrize(
    ("faults", "found"),
    [("", ["losses"]), (fault(0.5, 200.0, fence_only=False), [])],
    ids=["no fault", "a fault"],
)
def test_many_losses(tmp_path: Path, faults: str, found: list[str]) -> None:
    """They are a violation, unless a fault was in force."""
    grants = [
        lost(number, 2.0 * number) if number % 9 == 1 else kept
        for number in range(1, 30)
        for kept in [
            held("long/0", 2.0 * number, 2.0 * number + 1, number, asked=2.0 * number)
        ]
    ]
    later = held("own/1", 500.0, 500.1, 1, asked=499.9)
    judge = judged(tmp_path, *grants, later, faults=faults)
    assert [kind for kind, *_ in judge.violations] == found
    assert (judge.long, judge.long_lost) == ((28, 4) if found else (0, 0))


@pytest.mark.parametrize(
    ("name", "faults", "busy", "found"),
    [
        ("own/1", "", True, ["leak"]),
        ("own/1", "", False, []),
        ("own/1", fault(0.5, 1.0, fence_only=False), True, []),
        ("hot/1", "", True, []),
    ],
    ids=["no fault", "it stands still", "a fault", "of all"],
)
def test_a_refused_own_name(
    tmp_path: Path, name: str, faults: str, found: list[str], *, busy: bool
) -> None:
    """No other task uses it: a grant was left, unless its process stood still."""
    who = ("p", name, f"{7:012x}")
    refused = iter((Ask(*who, SECOND, "W"), Refused(*who, 2 * SECOND, SECOND)))
    begins = (1.1, 1.4, 1.7) if busy else (1.1,)
    others = (
        held(f"own/{7 + number}", begin, begin + 0.1, number, asked=begin)
        for number, begin in enumerate(begins)
    )
    later = held("own/2", 500.0, 500.1, 1, asked=499.9)
    judge = judged(tmp_path, refused, *others, later, faults=faults)
    assert [kind for kind, *_ in judge.violations] == found


@pytest.mark.parametrize(
    ("enters", "passed", "compared"),
    [(1.08, 2, 3), (1.28, 0, 2)],
    ids=["", "its process stands still"],
)
def test_how_many_passed(
    tmp_path: Path, enters: float, passed: int, compared: int
) -> None:
    """Who asked after another one and entered before it has passed it."""
    judge = judged(
        tmp_path,
        held("hot/0", 1.04, 1.05, 1, asked=1.01),
        held("hot/0", 1.06, 1.07, 2, asked=1.02),
        held("hot/0", enters, enters + 0.01, 3, asked=1.0),
        held("own/1", 500.0, 500.1, 1, asked=499.9),
    )
    assert judge.most_passed == passed
    assert judge.compared == compared


def test_events_written_during_a_read_are_judged_later(tmp_path: Path) -> None:
    """A release that was written to a file read early is not missed."""
    (tmp_path / "faults.jsonl").touch()
    judge = Judge(FaultLog(tmp_path / "faults.jsonl", 2.0), WINDOW)
    ask, granted, end, _ = held("hot/0", 1.0, 2.0, 1, asked=0.9)
    second = held("hot/0", 1.6, 1.8, 2, asked=1.55)
    assert isinstance(end, Releasing)
    leaves = replace(end, at=round(1.5 * SECOND))
    judge.read(map(encode_event, [ask, granted, *second]), round(1.4 * SECOND))
    judge.judge()
    judge.read([encode_event(leaves)], 3 * SECOND)
    judge.judge()
    assert not judge.violations
