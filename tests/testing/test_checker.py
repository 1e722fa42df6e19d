"""Both judges on the same histories: correct ones pass, each kind of fault is found."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorwlock_remote.testing.checker import Violation, check_history
from aiorwlock_remote.testing.history import (
    Access,
    Ask,
    Died,
    Event,
    EventMode,
    Failed,
    Granted,
    Lost,
    Refused,
    Released,
    Releasing,
    Unknown,
    read_history,
)
from tests.judge import fix_judge
from tests.judge.cases import FAULTY, JUST
from tests.judge.handmade import LEASE, session, written
from tests.judge.simulated import Bug, Scheduler, queue

if TYPE_CHECKING:
    from tests.judge.fix_judge import GoJudge

go_judge = fix_judge.go_judge
go_judge_binary = fix_judge.go_judge_binary

Found = Callable[[Iterable[Event]], set[str]]
"""The kinds of violation a judge finds."""


@pytest.fixture(params=["python", "go"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Found:
    def by_python(events: Iterable[Event]) -> set[str]:
        return {violation.kind for violation in check_history(events).violations}

    if request.param == "python":
        return by_python
    go: GoJudge = request.getfixturevalue("go_judge")

    def by_go(events: Iterable[Event]) -> set[str]:
        return set(go(written(tmp_path, events), LEASE).violations)

    return by_go


# -------------------------------------------------------------- just histories


@pytest.mark.parametrize("name", JUST)
def test_a_just_history_passes(name: str, found: Found) -> None:
    assert found(JUST[name]) == set()


# ----------------------------------------------------------- negative controls


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found(name: str, found: Found) -> None:
    kind, events = FAULTY[name]
    assert kind in found(events)


@pytest.mark.parametrize(("first", "then"), ["WW", "WR", "RW"])
@pytest.mark.parametrize("fence", [4, 5])
def test_a_fence_that_goes_back_in_a_queue_is_found(
    first: EventMode, then: EventMode, fence: int, found: Found
) -> None:
    a = session("a", first, 10, asked=1, fence=5, left=20)
    b = session("b", then, 25, asked=2, fence=fence, left=40)
    # Only that they exclude each other tells which was granted first.
    assert found(a + b) & {"fence", "exclusion"}


@pytest.mark.parametrize("name", FAULTY)
def test_the_python_judge_accuses_of_nothing_else(name: str) -> None:
    kind, events = FAULTY[name]
    assert {violation.kind for violation in check_history(events).violations} == {kind}


# ------------------------------------------------------------------ simulation

BUGS = {
    Bug.READER_IGNORES_WRITER: "exclusion",
    Bug.RELEASE_FREES_ANYBODY: "exclusion",
    Bug.WRITERS_ALONE_RAISE_THE_FENCE: "fence",
    Bug.LEDGER_IGNORES_FENCE: "isolation",
}


@pytest.mark.parametrize("seed", range(8))
def test_a_correct_lock_passes_under_faults(seed: int, found: Found) -> None:
    assert found(Scheduler(seed).run(clients=6, acquires=400)) == set()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.lower())
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_bug_is_found(bug: Bug, seed: int, found: Found) -> None:
    assert BUGS[bug] in found(Scheduler(seed, bug).run(clients=6, acquires=400))


def test_the_simulation_has_every_kind_of_event() -> None:
    events = Scheduler(0).run(clients=6, acquires=400)
    assert {type(event) for event in events} == {
        *(Ask, Granted, Refused, Failed, Unknown),
        *(Access, Releasing, Released, Lost, Died),
    }
    assert check_history(events).refused > 0


# ------------------------------------------------------------------- verdicts


def test_figures_of_a_history() -> None:
    events: list[Event] = []
    for i in range(1, 101):
        at = 1000 * i
        serials = [2 * i - 1, 2 * i, None]
        events += session(
            f"h{i}", "W", at, asked=at - i, fence=i, serials=serials, left=at + 5
        )
    verdict = check_history(events)
    assert verdict.ok
    assert verdict.grants == 100
    assert (verdict.wait_p50, verdict.wait_p99) == (50, 99)
    assert (verdict.accesses, verdict.refused) == (200, 100)


def test_an_empty_history_is_no_crime() -> None:
    verdict = check_history([])
    assert verdict.ok
    assert (verdict.grants, verdict.wait_p50, verdict.wait_p99) == (0, 0, 0)


def test_a_violation_says_who_and_when() -> None:
    _, events = FAULTY["two writers"]
    verdict = check_history(events)
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
    events = Scheduler(1, Bug.READER_IGNORES_WRITER).run(clients=6, acquires=400)
    verdict = check_history(events)
    random.Random(1).shuffle(events)
    assert check_history(events) == verdict


def test_judging_takes_as_many_steps_as_there_are_events() -> None:
    """200,000 events of a soak are judged in seconds."""

    def calls(sessions: int) -> int:
        events: list[Event] = []
        for i in range(sessions):
            at = 10 * i + 10
            mode: EventMode = "W" if i % 3 else "R"
            events += session(f"h{i}", mode, at, fence=i, serials=[i], left=at + 5)
        counted = Counter[str]()
        sys.setprofile(lambda _, event, __: counted.update((event,)))
        try:
            assert check_history(events).ok
        finally:
            sys.setprofile(None)
        return counted["call"] + counted["c_call"]

    assert calls(1_600) < 4.5 * calls(400)


# -------------------------------------------------------------------- go judge


def test_both_judges_count_alike(go_judge: GoJudge, tmp_path: Path) -> None:
    paths = written(tmp_path, Scheduler(0).run(clients=6, acquires=400))
    python, go = check_history(read_history(paths)), go_judge(paths, LEASE)
    assert (python.accesses, python.refused) == (go.accesses, go.refused)
    assert go.operations > python.grants


def test_a_torn_last_line_is_tolerated(go_judge: GoJudge, tmp_path: Path) -> None:
    paths = written(tmp_path, JUST["readers together, then a writer"])
    for path in paths:
        with path.open("ab") as file:
            file.write(b'{"e":"access","p":"a","r":"cata')
    assert go_judge(paths, LEASE).ok
    assert check_history(read_history(paths)).ok


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
def test_a_long_queue_is_judged_in_time(writers: float, found: Found) -> None:
    # 5,000 acquires, any of 32 of which might be next: hours would not do if the
    # fences did not tell which.
    events = queue(waiters=32, acquires=5_000, writers=writers)
    assert found(events) == set()


def test_readers_after_readers_are_judged_at_all(found: Found) -> None:
    # The second phase asked first: by its times alone any of 40 might be next, and who
    # takes one of the second too early finds out after all others of it.
    phases = ((1, 60, 100), (2, 50, 150))
    events = [
        event
        for fence, asked, at in phases
        for number in range(20)
        for event in session(f"{fence}{number:02}", "R", at, fence=fence, asked=asked)
    ]
    assert found(events) == set()


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
