"""The benchmarks on Redis still run and are complete. No time is judged."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from benchmarks.harness.measures import CLIENT_CPU, Turn, Window
from benchmarks.harness.report import (
    Bar,
    Figures,
    Minimum,
    NotMeasured,
    Sample,
    Verdict,
    bar_table,
    tables,
    verdicts,
)
from benchmarks.harness.scenario import Measured, Round
from benchmarks.redis.__main__ import main
from benchmarks.redis.adapters import (
    BLPOP,
    FLOOR,
    MEMORY,
    OURS,
    REDIS_PY,
    REDISSON,
    RUEIDIS,
)
from benchmarks.redis.bars import BARS
from benchmarks.redis.foreign import programs
from benchmarks.redis.scenarios import SCENARIOS
from benchmarks.redis.server import Server, server
from tests.benchmarks.suites import bench, of_scenarios, quick, samples, verdict_by

WITH_PEERS = ("alone", "one-key")
"""Every program that is compared takes part in one of them."""
TITLES = {name: scenario.title for name, scenario in SCENARIOS.items()}


def test_quick_measures_ours_in_every_other_scenario(tmp_path: Path) -> None:
    others = [name for name in SCENARIOS if name not in WITH_PEERS]
    _, measured = quick("redis", tmp_path, *of_scenarios(*others), "--peer", OURS)
    wanted = {
        (name, loop)
        for name in others
        for peer, loop in SCENARIOS[name].entrants
        if peer == OURS
    }
    assert {(s.scenario, s.loop) for s in measured} == wanted
    assert {s.peer for s in measured} == {OURS}
    figures = Figures(measured)
    assert figures.median("waiters", "served of 1,000", OURS) == 1000
    assert figures.median("waiters", "connections", OURS) >= 1
    assert len(figures.values("hand-over", "hand-over, ms", OURS)) == 5
    assert len(figures.values("killed-holders", "after the lease's end, ms", OURS)) == 2


@pytest.mark.parametrize("name", WITH_PEERS)
def test_quick_measures_every_peer_of_a_scenario(name: str, tmp_path: Path) -> None:
    result, measured = quick("redis", tmp_path, *of_scenarios(name))
    assert result["about"]["redis-server"]
    wanted = set(SCENARIOS[name].entrants)
    # The one peer that may be missing, and then it is said.
    if any(note.startswith(RUEIDIS) for note in result["notes"]):
        wanted = {entrant for entrant in wanted if RUEIDIS not in entrant}
    assert {(s.peer, s.loop) for s in measured} == wanted
    judged = [bar for bar in result["bars"] if bar["holds"] is not None]
    assert {bar["scenario"] for bar in judged} == {name}
    assert len(judged) == sum(bar.scenario == name for bar in BARS) > 0
    if name == "one-key":
        figures = Figures(measured)
        # One BLPOP and one LPUSH; a few are cut off at the edges of the window.
        of_blpop = figures.median(name, "requests a cycle", BLPOP)
        assert of_blpop == pytest.approx(2, abs=0.1)
        assert figures.median(name, "requests a cycle", OURS) > 0
        assert figures.median(name, "fences rise every cycle", OURS) == 1


def test_without_redis_server_it_says_what_to_install(tmp_path: Path) -> None:
    ran = bench("redis", path=str(tmp_path))
    assert ran.returncode == 1
    assert "apt-get install redis-server" in ran.stderr


def test_a_peer_whose_tools_are_missing_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    built, notes = programs(tmp_path, {RUEIDIS, REDISSON})
    assert built == {}
    assert notes == [
        "Redisson is left out: there is no mvn on PATH.",
        "rueidislock is left out: there is no go on PATH.",
    ]


def test_a_program_that_cannot_be_built_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "go"
    broken.write_text("#!/bin/sh\necho no module there; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    built, notes = programs(tmp_path, {RUEIDIS})
    assert built == {}
    assert notes == ["rueidislock is left out: go failed (no module there)."]


def test_a_failure_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(round_: Round[Server]) -> Measured:
        assert round_.peer == FLOOR, "two tasks held the lock at the same time"
        return {"cycles/s": [7.0]}

    monkeypatch.setitem(
        SCENARIOS, "own-keys", replace(SCENARIOS["own-keys"], measure=measure)
    )
    options = ["--quick", "--scenario", "own-keys", "--peer", FLOOR, "--peer", REDIS_PY]
    assert main(options) == 1
    printed = capsys.readouterr().out
    assert "| cycles/s | 7.00 |" in printed
    assert "own-keys, redis-py, asyncio: two tasks held" in printed


def test_requests_are_counted_without_what_scripts_do() -> None:
    with (
        server() as running,
        Redis.from_url(running.url) as redis,
        running.monitored() as requests,
    ):
        redis.ping()
        begin = time.time()
        redis.eval("for n = 1, 5 do redis.call('SET', 'x', '\"') end", 0)
        redis.set("x", '[0 lua] "x"\r\n+1.5 [0 lua]')
        end = time.time()
        redis.ping()
    assert requests.between(begin, end) == 2
    assert requests.between(0, end) >= 3


def test_without_turns_there_is_no_figure_for_a_cycle() -> None:
    turn = Turn((0, 0), writes=True, asked=0.1, got_in=0.2, left=0.3, fence=0)
    window = Window(0.0, 1.0, 0.0, [turn], client_cpu=0.5, server_cpu=None)
    assert window.cpu_a_cycle() == {CLIENT_CPU: [5e5]}
    assert replace(window, turns=[]).cpu_a_cycle() == {}


def test_a_task_that_still_waits_at_the_end_counts_with_its_wait() -> None:
    turn = Turn((0, 0), writes=True, asked=0.1, got_in=0.2, left=0.3, fence=0)
    late = replace(turn, asked=0.5, got_in=1.7, writes=False)
    waiting = [(True, 0.4), (False, 0.9)]
    window = Window(0.0, 1.0, 0.0, [turn, late], waiting=waiting)
    assert sorted(window.waits()) == pytest.approx([0.1, 0.1, 0.5, 0.6])
    assert sorted(window.waits(writes=True)) == pytest.approx([0.1, 0.6])
    assert sorted(window.waits(writes=False)) == pytest.approx([0.1, 0.5])


def test_a_peer_that_broke_twice_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: list[str] = []

    def measure(round_: Round[Server]) -> Measured:
        rounds.append(round_.peer)
        if round_.peer == REDIS_PY:
            raise RuntimeError("silent for 15 s")
        return {"cycles/s": [7.0]}

    monkeypatch.setitem(
        SCENARIOS, "own-keys", replace(SCENARIOS["own-keys"], measure=measure)
    )
    options = ["--scenario", "own-keys", "--peer", FLOOR, "--peer", REDIS_PY]
    assert main([*options, "--repeat", "4"]) == 1
    assert (rounds.count(FLOOR), rounds.count(REDIS_PY)) == (4, 2)
    assert capsys.readouterr().out.count("silent for 15 s") == 2


# ---------------------------------------------------------------------- bars

verdict = partial(verdict_by, BARS)


def test_a_cycle_is_compared_with_the_floor_of_its_loop() -> None:
    of = ("alone", "cycle p50, µs")
    floor = samples(*of, FLOOR, 30, 300)
    ours = samples(*of, OURS, 66, 660)
    found = verdict("alone: cycle, of the floor's", floor, ours)
    assert (found.figure, found.limit, found.holds) == (2.2, 2.2, True)
    on_uvloop = [
        replace(sample, loop="uvloop", value=sample.value / 2)
        for sample in (*floor, *samples(*of, OURS, 60, 600))
    ]
    found = verdict("alone: uvloop: cycle, of its floor's", floor, ours, on_uvloop)
    assert (found.figure, found.limit, found.holds) == (2.0, 1.9, False)


def test_throughput_is_compared_within_each_repetition() -> None:
    # The second repetition was disturbed, for both.
    of = ("mixed-tasks", "cycles/s")
    memory = samples(*of, MEMORY, 3000, 300, 3000)
    enough = verdict(
        "mixed-tasks: cycles/s, of memory://'s",
        memory,
        samples(*of, OURS, 1800, 180, 1200),
    )
    assert (enough.figure, enough.holds) == (0.6, True)
    less = verdict(
        "mixed-tasks: cycles/s, of memory://'s",
        memory,
        samples(*of, OURS, 1700, 180, 1200),
    )
    assert less.holds is False


def test_hand_overs_of_all_repetitions_make_one_percentile() -> None:
    of = ("hand-over", "hand-over, ms")
    blpop = samples(*of, BLPOP, *range(1, 102))
    ours = samples(*of, OURS, *(n * 2.1 for n in range(1, 102)))
    found = verdict("hand-over: p95, of raw BLPOP's", blpop, ours)
    assert found.figure == pytest.approx(2.1)
    assert found.holds is True
    found = verdict("hand-over: p50, of raw BLPOP's", blpop, ours)
    assert found.figure == pytest.approx(2.1)
    assert found.holds is False


def test_a_drain_may_take_as_long_as_rueidislock_needs() -> None:
    ours = samples("waiters", "drain, s", OURS, 0.4)
    assert verdict("waiters: drain", ours).holds is False
    quick = samples("waiters", "drain, s", RUEIDIS, 0.1)
    assert verdict("waiters: drain", ours, quick).limit == 0.35
    slow = samples("waiters", "drain, s", RUEIDIS, 0.3)
    assert verdict("waiters: drain", ours, slow).holds is True


def test_what_was_not_measured_is_not_said_to_hold() -> None:
    missing = list(verdicts(BARS, Figures([])))
    assert len(missing) == len(BARS)
    assert {v.holds for v in missing} == {None}
    shown = bar_table(missing, list(SCENARIOS))
    assert shown.count("not measured") == len(BARS)
    with pytest.raises(NotMeasured):
        Figures([]).median("alone", "cycle p50, µs", OURS)


def test_the_report_shows_limit_figure_and_whether_it_holds() -> None:
    least = Minimum("mixed-tasks", "cycles/s", lambda _: 0.0, 1800.0)
    most = Bar("killed-holders", "late", lambda _: 0.0, 20.0, "ms")
    shown = bar_table(
        [Verdict(most, 20.5, 20.0), Verdict(least, 1900, 1800.0)],
        ["mixed-tasks", "killed-holders"],
    )
    assert shown.splitlines()[2:] == [
        "| mixed-tasks | cycles/s | ≥ 1,800 | 1,900 | yes |",
        "| killed-holders | late | ≤ 20.0 ms | 20.5 ms | **NO** |",
    ]


def test_a_table_shows_spans_and_percentiles() -> None:
    few = samples("alone", "cycle p50, µs", OURS, 50, 40, 60)
    assert "| cycle p50, µs | 50.0 (40.0 … 60.0) |" in tables(few, TITLES)
    many = [
        Sample("asyncio", "killed-holders", "late, ms", "redis", OURS, n % 3, float(n))
        for n in range(11)
    ]
    assert "| late, ms | p50 5.00, p90 9.00, p95 9.50 (n = 11) |" in tables(
        many, TITLES
    )
