"""The benchmarks on Redis still run and are complete. No time is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks.redis.adapters import (
    BLPOP,
    FLOOR,
    MEMORY,
    OURS,
    REDIS_PY,
    RUEIDIS,
)
from benchmarks.redis.bars import BARS, AtLeast, Bar, Verdict, verdicts
from benchmarks.redis.figures import Figures, NotMeasured
from benchmarks.redis.report import bars, tables
from benchmarks.redis.scenarios import SCENARIOS
from benchmarks.redis.server import server
from benchmarks.sample import Sample

ROOT = Path(__file__).parents[2]


def bench(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.redis", *options],
        cwd=ROOT,
        env=os.environ if path is None else os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )


@pytest.mark.timeout(240)
def test_quick_measures_every_peer_in_every_scenario(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    ran = bench("--quick", "--json", str(file))
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(file.read_text("utf-8"))
    samples = [Sample(**sample) for sample in result["samples"]]
    wanted = {
        (name, *entrant) for name, s in SCENARIOS.items() for entrant in s.entrants
    }
    if result["notes"]:  # the one peer that may be missing, and then it is said
        assert RUEIDIS in result["notes"][0]
        wanted = {entry for entry in wanted if RUEIDIS not in entry}
    assert {(s.scenario, s.peer, s.loop) for s in samples} == wanted
    assert [bar for bar in result["bars"] if bar["holds"] is None] == []
    assert len(result["bars"]) == len(BARS) > 20
    assert result["about"]["redis-server"]
    check_counts(Figures(samples))
    assert "| holds |" in ran.stdout


def check_counts(figures: Figures) -> None:
    for scenario in ("S4a", "S4b", "S4d"):
        # One BLPOP and one LPUSH; a few are cut off at the edges of the window.
        of_blpop = figures.median(scenario, "requests a cycle", BLPOP)
        assert of_blpop == pytest.approx(2, abs=0.1)
        assert figures.median(scenario, "requests a cycle", OURS) > 0
        assert figures.median(scenario, "fences rise every cycle", OURS) == 1
    for peer in (BLPOP, OURS, REDIS_PY):
        assert figures.median("S6", "served of 1,000", peer) == 1000
    assert figures.median("S6", "connections", BLPOP) == 20
    assert figures.median("S6", "connections", OURS) >= 1
    assert len(figures.values("S3", "hand-over, ms", OURS)) == 5
    assert len(figures.values("S7", "after the lease's end, ms", OURS)) == 2


def test_without_redis_server_it_says_what_to_install(tmp_path: Path) -> None:
    ran = bench("--quick", path=str(tmp_path))
    assert ran.returncode == 1
    assert "apt-get install redis-server" in ran.stderr


def test_requests_are_counted_without_what_scripts_do() -> None:
    with (
        server() as running,
        Redis.from_url(running.url) as redis,
        running.overheard() as heard,
    ):
        redis.ping()
        begin = time.time()
        redis.eval("for n = 1, 5 do redis.call('SET', 'x', '\"') end", 0)
        redis.set("x", '[0 lua] "x"\r\n+1.5 [0 lua]')
        end = time.time()
        redis.ping()
    assert heard.between(begin, end) == 2
    assert heard.between(0, end) >= 3


# ---------------------------------------------------------------------- bars


def samples(scenario: str, metric: str, peer: str, *values: float) -> list[Sample]:
    return [
        Sample("asyncio", scenario, metric, "redis", peer, repetition, value)
        for repetition, value in enumerate(values)
    ]


def verdict(what: str, *groups: list[Sample]) -> Verdict:
    figures = Figures([sample for group in groups for sample in group])
    (found,) = [
        v for v in verdicts(figures) if f"{v.bar.scenario}: {v.bar.what}" == what
    ]
    return found


def test_a_cycle_is_compared_with_the_floors_least_repetition() -> None:
    of = ("S1", "cycle p50, µs")
    floor = samples(*of, FLOOR, 60, 30, 64)
    found = verdict(
        "S1: cycle, of the floor's least repetition",
        floor,
        samples(*of, OURS, 54, 53, 70),
    )
    assert (found.figure, found.limit, found.holds) == (1.8, 1.8, True)
    slower = samples(*of, OURS, 54, 55, 70)
    found = verdict("S1: cycle, of the floor's least repetition", floor, slower)
    assert found.holds is False


def test_throughput_is_compared_within_each_repetition() -> None:
    # The second repetition was disturbed, for both.
    of = ("S5", "cycles/s")
    memory = samples(*of, MEMORY, 3000, 300, 3000)
    enough = verdict(
        "S5: cycles/s, of memory://'s", memory, samples(*of, OURS, 1800, 180, 1200)
    )
    assert (enough.figure, enough.holds) == (0.6, True)
    less = verdict(
        "S5: cycles/s, of memory://'s", memory, samples(*of, OURS, 1700, 180, 1200)
    )
    assert less.holds is False


def test_hand_overs_of_all_repetitions_make_one_percentile() -> None:
    of = ("S3", "hand-over, ms")
    blpop = samples(*of, BLPOP, *range(1, 102))
    ours = samples(*of, OURS, *(n * 1.2 for n in range(1, 102)))
    found = verdict("S3: hand-over p95, of raw BLPOP's", blpop, ours)
    assert found.figure == pytest.approx(1.2)
    assert found.holds is False


def test_a_drain_may_take_as_long_as_rueidislock_needs() -> None:
    ours = samples("S6", "drain, s", OURS, 0.4)
    assert verdict("S6: drain", ours).holds is False
    quick = samples("S6", "drain, s", RUEIDIS, 0.1)
    assert verdict("S6: drain", ours, quick).limit == 0.35
    slow = samples("S6", "drain, s", RUEIDIS, 0.3)
    assert verdict("S6: drain", ours, slow).holds is True


def test_what_was_not_measured_is_not_said_to_hold() -> None:
    missing = list(verdicts(Figures([])))
    assert len(missing) == len(BARS)
    assert {v.holds for v in missing} == {None}
    shown = bars(missing)
    assert shown.count("not measured") == len(BARS)
    with pytest.raises(NotMeasured):
        Figures([]).median("S1", "cycle p50, µs", OURS)


def test_the_report_shows_limit_figure_and_whether_it_holds() -> None:
    least = AtLeast("S5", "cycles/s", lambda _: 0.0, 1800.0)
    most = Bar("S7", "late", lambda _: 0.0, 20.0, "ms")
    shown = bars([Verdict(most, 20.5, 20.0), Verdict(least, 1900, 1800.0)])
    assert shown.splitlines()[2:] == [
        "| S5 | cycles/s | ≥ 1,800 | 1,900 | yes |",
        "| S7 | late | ≤ 20.0 ms | 20.5 ms | **NO** |",
    ]


def test_a_table_shows_spans_and_percentiles() -> None:
    few = samples("S1", "cycle p50, µs", OURS, 50, 40, 60)
    assert "| cycle p50, µs | 50.0 (40.0 … 60.0) |" in tables(few)
    many = [
        Sample("asyncio", "S7", "late, ms", "redis", OURS, n % 3, float(n))
        for n in range(11)
    ]
    assert "| late, ms | p50 5.00, p90 9.00, p95 9.50 (n = 11) |" in tables(many)
