"""Both judges on the same histories: the just pass, each kind of fault is found."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorwlock_remote.testing.events import (
    Access,
    Ask,
    Died,
    Event,
    Failed,
    Granted,
    Lost,
    Mode,
    Refused,
    Released,
    Releasing,
    Unknown,
)
from aiorwlock_remote.testing.history import read
from aiorwlock_remote.testing.judge import Violation, judge
from tests.judge import fix_judge
from tests.judge.handmade import LEASE, MS, died, lost, releasing, session, written
from tests.judge.simulated import Bug, World, queue

if TYPE_CHECKING:
    from tests.judge.fix_judge import GoJudge

go_judge = fix_judge.go_judge
go_judge_binary = fix_judge.go_judge_binary

Found = Callable[[Iterable[Event]], set[str]]
"""The kinds of violation a judge finds."""


@pytest.fixture(params=["python", "go"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Found:
    def by_python(events: Iterable[Event]) -> set[str]:
        return {violation.kind for violation in judge(events).violations}

    if request.param == "python":
        return by_python
    go: GoJudge = request.getfixturevalue("go_judge")

    def by_go(events: Iterable[Event]) -> set[str]:
        return set(go(written(tmp_path, events), LEASE).violations)

    return by_go


# -------------------------------------------------------------- just histories

JUST: dict[str, list[Event]] = {
    "writers one after another": [
        *session("a", "W", 10, fence=1, serials=[1, 2], left=20),
        *session("b", "W", 25, fence=2, serials=[3, 4], left=30),
    ],
    "readers together, then a writer": [
        *session("a", "R", 10, fence=1, serials=[1, 3], left=20),
        *session("b", "R", 11, fence=1, serials=[2, 4], left=22),
        *session("w", "W", 25, fence=2, serials=[5], left=30),
    ],
    "a waiter granted while the release is under way": [
        *session("a", "W", 10, fence=1, left=20),
        *session("b", "W", 20, asked=5, fence=2, left=30),
    ],
    "expired, nobody released": [
        *session("a", "W", 10, fence=1, until=100),
        *session("b", "W", 101, fence=2),
    ],
    "released late, and told so": [
        *session("a", "W", 10, fence=1, until=100, left=150, ok=False),
        *session("b", "W", 110, fence=2, until=205, left=160),
    ],
    "the outcome of a release is not known": [
        *session("a", "W", 10, fence=1, left=20, ok=None),
        *session("b", "W", 22, fence=2, left=30),
    ],
    "killed, the successor enters when the deadline has passed": [
        *session("a", "W", 10, fence=1, until=100),
        died("a", 20),
        *session("b", "W", 101, fence=2),
    ],
    "killed while releasing": [
        *session("a", "W", 10, fence=1, until=100),
        releasing("a", 20, 100),
        died("a", 30),
        *session("b", "W", 25, fence=2),
    ],
    "lost before the deadline, and known to be": [
        *session("a", "W", 10, fence=1, until=100),
        lost("a", 40),
        *session("b", "W", 45, fence=2),
    ],
    "stale access refused": [
        *session("a", "W", 10, fence=1, until=100, serials=[1]),
        *session("b", "W", 110, fence=2, serials=[2], left=120),
        Access("a", "catalog,7", "a", 130 * MS, "W", 1, 2, None, 100 * MS),
    ],
    "a reader's session goes on among readers": [
        *session("a", "R", 10, fence=1, serials=[1, 5], left=20),
        *session("b", "R", 11, fence=1, serials=[2, 3, 4], left=22),
    ],
    "fences of two waiters granted in another order than they asked": [
        *session("a", "W", 30, asked=1, until=130, fence=2, left=40),
        *session("b", "W", 10, asked=2, fence=1, left=20),
    ],
    "a reply after the deadline": [
        *session("a", "W", 150, asked=10, until=100, fence=1, left=160, ok=False),
        *session("b", "W", 120, fence=2, left=155),
    ],
    "never expires, released in the end": [
        *session("a", "W", 10, fence=1, forever=True, serials=[1], left=900),
        *session("b", "W", 905, fence=2),
    ],
    "the outcome of an acquire is not known": [
        Unknown("a", "catalog,7", "a", 20 * MS, 9 * MS),
        *session("b", "W", 15, fence=2, left=30),
    ],
    "not known to be granted, but released": [
        Ask("a", "catalog,7", "a", 9 * MS, "W"),
        Unknown("a", "catalog,7", "a", 20 * MS, 9 * MS),
        releasing("a", 25, 100),
        Released("a", "catalog,7", "a", 26 * MS, 25 * MS, ok=True),
        *session("b", "W", 28, fence=2, left=30),
    ],
    "asked in the instant in which the other was granted": [
        *session("a", "R", 10, fence=2, left=20),
        *session("b", "R", 12, asked=10, fence=1, left=20),
    ],
    "a deadline that was over before": [
        *session("a", "W", 10, fence=1, until=5),
        *session("b", "W", 15, fence=2),
    ],
    "other names are other locks": [
        *session("a", "W", 10, fence=2, serials=[1], left=20),
        Granted("b", "catalog,8", "b", 15 * MS, 14 * MS, "W", 1, 99 * MS),
        Access("b", "catalog,8", "b", 16 * MS, "W", 1, 1, 1, 99 * MS),
    ],
}


@pytest.mark.parametrize("name", JUST)
def test_a_just_history_passes(name: str, found: Found) -> None:
    assert found(JUST[name]) == set()


# ----------------------------------------------------------- negative controls

FAULTY: dict[str, tuple[str, list[Event]]] = {
    "two writers": (
        "exclusion",
        session("a", "W", 10, fence=1, left=50)
        + session("b", "W", 30, fence=2, left=60),
    ),
    "a reader inside a writer": (
        "exclusion",
        session("a", "W", 10, fence=1, left=50)
        + session("b", "R", 30, fence=2, left=60),
    ),
    "a writer inside readers, one of whom has left": (
        "exclusion",
        session("a", "R", 10, fence=1, left=60)
        + session("b", "R", 11, fence=1, left=20)
        + session("w", "W", 30, fence=2, left=40),
    ),
    "a grant before the deadline of one that did not release": (
        "exclusion",
        session("a", "W", 10, fence=1, until=100) + session("b", "W", 50, fence=2),
    ),
    "a grant before the deadline renewed last": (
        "exclusion",
        [
            *session("a", "W", 10, fence=1, until=100),
            Access("a", "catalog,7", "a", 50 * MS, "W", 1, 1, 1, 150 * MS),
            Access("a", "catalog,7", "a", 60 * MS, "W", 1, 2, 2, 110 * MS),
            *session("b", "W", 120, fence=2),
        ],
    ),
    "a grant before the deadline of a killed holder": (
        "exclusion",
        [
            *session("a", "W", 10, fence=1, until=100),
            died("a", 20),
            *session("b", "W", 90, fence=2),
        ],
    ),
    "a grant before its holder lost it": (
        "exclusion",
        [
            *session("a", "W", 10, fence=1, until=100),
            lost("a", 60),
            *session("b", "W", 50, fence=2),
        ],
    ),
    "a grant beside one that never expires": (
        "exclusion",
        session("a", "W", 10, fence=1, forever=True)
        + session("b", "W", 90_000, fence=2),
    ),
    "alive beyond its deadline when released, yet another was let in": (
        "exclusion",
        session("a", "W", 10, fence=1, until=100, left=150, ok=True)
        + session("b", "W", 120, fence=2, left=160),
    ),
    "a fence that goes back": (
        "fence",
        session("a", "W", 10, fence=5, left=20)
        + session("b", "W", 30, fence=4, left=40),
    ),
    "a fence that goes back among readers": (
        "fence",
        session("a", "R", 10, fence=5, left=20)
        + session("b", "R", 30, fence=4, left=40),
    ),
    "a fence that goes back later": (
        "fence",
        session("a", "W", 10, fence=5, left=20)
        + session("b", "W", 30, fence=6, left=40)
        + session("c", "R", 50, fence=5, left=60),
    ),
    "equal fences of two writers": (
        "fence",
        session("a", "W", 10, fence=5, left=20)
        + session("b", "W", 30, fence=5, left=40),
    ),
    "a reader with the fence of a writer": (
        "fence",
        session("a", "W", 10, fence=5, left=20)
        + session("b", "R", 30, fence=5, left=40),
    ),
    "a writer with the fence of readers": (
        "fence",
        session("a", "R", 10, fence=5, left=20)
        + session("b", "R", 11, fence=5, left=21)
        + session("c", "W", 30, fence=5, left=40),
    ),
    "a foreign write in a writer's session": (
        "isolation",
        session("a", "W", 10, fence=1, until=100, serials=[1, 3])
        + session("b", "W", 110, fence=2, serials=[2]),
    ),
    "a foreign read in a writer's session": (
        "isolation",
        session("a", "W", 10, fence=1, until=100, serials=[1, 3])
        + session("b", "R", 110, fence=2, serials=[2]),
    ),
    "a foreign write in a reader's session": (
        "isolation",
        session("a", "R", 10, fence=1, until=100, serials=[1, 3, 4])
        + session("b", "W", 110, fence=2, serials=[2]),
    ),
    "an access by one never granted": (
        "garbage",
        [
            *session("a", "W", 10, fence=1, left=20),
            Access("b", "catalog,7", "b", 15 * MS, "W", 1, 1, 1, None),
        ],
    ),
    "an access with another fence than granted": (
        "garbage",
        [
            *session("a", "W", 10, fence=1, left=20),
            Access("a", "catalog,7", "a", 15 * MS, "W", 2, 1, 1, 100 * MS),
        ],
    ),
    "a write by a reader": (
        "garbage",
        [
            *session("a", "R", 10, fence=1, left=20),
            Access("a", "catalog,7", "a", 15 * MS, "W", 1, 1, 1, 100 * MS),
        ],
    ),
    "two accesses in one place": (
        "garbage",
        session("a", "R", 10, fence=1, serials=[1, 2], left=20)
        + session("b", "R", 11, fence=1, serials=[2], left=20),
    ),
    "one attempt granted twice": (
        "garbage",
        session("a", "R", 10, fence=1) + session("a", "R", 11, fence=1),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found(name: str, found: Found) -> None:
    kind, events = FAULTY[name]
    assert kind in found(events)


@pytest.mark.parametrize(("first", "then"), ["WW", "WR", "RW"])
@pytest.mark.parametrize("fence", [4, 5])
def test_a_fence_that_goes_back_in_a_queue_is_found(
    first: Mode, then: Mode, fence: int, found: Found
) -> None:
    a = session("a", first, 10, asked=1, fence=5, left=20)
    b = session("b", then, 25, asked=2, fence=fence, left=40)
    # Only that they exclude each other tells which was granted first.
    assert found(a + b) & {"fence", "exclusion"}


@pytest.mark.parametrize("name", FAULTY)
def test_the_python_judge_accuses_of_nothing_else(name: str) -> None:
    kind, events = FAULTY[name]
    assert {violation.kind for violation in judge(events).violations} == {kind}


# ------------------------------------------------------------------ simulation

BUGS = {
    Bug.READER_IGNORES_WRITER: "exclusion",
    Bug.RELEASE_FREES_ANYBODY: "exclusion",
    Bug.WRITERS_ALONE_RAISE_THE_FENCE: "fence",
    Bug.LEDGER_IGNORES_FENCE: "isolation",
}


@pytest.mark.parametrize("seed", range(8))
def test_a_correct_lock_passes_under_faults(seed: int, found: Found) -> None:
    assert found(World(seed).run(clients=6, acquires=400)) == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.lower())
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_bug_is_found(bug: Bug, seed: int, found: Found) -> None:
    assert BUGS[bug] in found(World(seed, bug).run(clients=6, acquires=400))


def test_the_simulation_has_every_kind_of_event() -> None:
    events = World(0).run(clients=6, acquires=400)
    assert {type(event) for event in events} == {
        *(Ask, Granted, Refused, Failed, Unknown),
        *(Access, Releasing, Released, Lost, Died),
    }
    assert judge(events).refused > 0


# ------------------------------------------------------------------- verdicts


def test_figures() -> None:
    events: list[Event] = []
    for i in range(1, 101):
        at = 1000 * i
        serials = [2 * i - 1, 2 * i, None]
        events += session(
            f"h{i}", "W", at, asked=at - i, fence=i, serials=serials, left=at + 5
        )
    verdict = judge(events)
    assert verdict.ok
    assert verdict.grants == 100
    assert (verdict.wait_p50, verdict.wait_p99) == (50, 99)
    assert (verdict.accesses, verdict.refused) == (200, 100)


def test_an_empty_history_is_no_crime() -> None:
    verdict = judge([])
    assert verdict.ok
    assert (verdict.grants, verdict.wait_p50, verdict.wait_p99) == (0, 0, 0)


def test_a_violation_says_who_and_when() -> None:
    _, events = FAULTY["two writers"]
    verdict = judge(events)
    assert not verdict.ok
    assert verdict.violations == (
        Violation(
            "exclusion",
            "catalog,7",
            "W b (fence 2) entered at 0.030000 s,"
            " W a (fence 1) held from 0.010000 s to 0.050000 s",
        ),
    )


def test_the_order_of_events_does_not_matter() -> None:
    events = World(1, Bug.READER_IGNORES_WRITER).run(clients=6, acquires=400)
    verdict = judge(events)
    random.Random(1).shuffle(events)
    assert judge(events) == verdict


def test_200_000_events_are_judged_in_three_seconds() -> None:
    events: list[Event] = []
    for i in range(40_000):
        at = 10 * i + 10
        mode: Mode = "W" if i % 3 else "R"
        events += session(f"h{i}", mode, at, fence=i, serials=[i], left=at + 5)
    assert len(events) == 200_000
    begin = time.process_time()
    assert judge(events).ok
    assert time.process_time() - begin < 3


# -------------------------------------------------------------------- go judge


def test_both_judges_count_alike(go_judge: GoJudge, tmp_path: Path) -> None:
    paths = written(tmp_path, World(0).run(clients=6, acquires=400))
    python, go = judge(read(paths)), go_judge(paths, LEASE)
    assert (python.accesses, python.refused) == (go.accesses, go.refused)
    assert go.operations > python.grants


def test_a_torn_last_line_is_tolerated(go_judge: GoJudge, tmp_path: Path) -> None:
    paths = written(tmp_path, JUST["readers together, then a writer"])
    for path in paths:
        with path.open("ab") as file:
            file.write(b'{"e":"access","p":"a","r":"cata')
    assert go_judge(paths, LEASE).ok
    assert judge(read(paths)).ok


@pytest.mark.parametrize("text", ['{"e":"as\n', '{"e":"born","p":"a","t":1}\n', ""])
def test_the_go_judge_wants_a_whole_history(
    text: str, go_judge: GoJudge, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="judge: "):
        go_judge([path], LEASE)


@pytest.mark.parametrize(
    ("events", "status", "verdict"),
    [
        (JUST["writers one after another"], 0, "OK"),
        (FAULTY["two writers"][1], 1, "VIOLATION"),
    ],
)
def test_the_go_judge_speaks_to_people(
    events: list[Event],
    status: int,
    verdict: str,
    go_judge_binary: Path,
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [go_judge_binary, "-lease-ms=100", *written(tmp_path, events)],
        capture_output=True,
        text=True,
        check=False,
    )
    resource, total = ran.stdout.splitlines()
    assert ran.returncode == status
    assert resource.startswith("catalog,7: 4 operations (")
    assert total.startswith("TOTAL 4 operations, ")
    assert total.endswith(f"verdict {verdict}")


@pytest.mark.parametrize("writers", [0.05, 0.4, 1])
def test_a_long_queue_is_judged_fast(writers: float, found: Found) -> None:
    # 5,000 acquires, any of 32 of which might be next: a minute would not do if the
    # fences did not tell which.
    events = queue(waiters=32, acquires=5_000, writers=writers)
    begin = time.monotonic()
    assert found(events) == set()
    assert time.monotonic() - begin < 20


def test_the_go_judge_knows_how_long_a_lease_is(
    go_judge: GoJudge, tmp_path: Path
) -> None:
    paths = written(tmp_path, session("a", "W", 10, fence=1, until=111))
    assert set(go_judge(paths, 100).violations) == {"deadline"}
    assert go_judge(paths, 101).ok


def test_no_go_fails_and_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fix_judge, "ELSEWHERE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="apt-get install golang-go"):
        fix_judge.build(tmp_path / "judge")
