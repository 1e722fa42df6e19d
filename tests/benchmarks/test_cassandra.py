"""The benchmarks on Cassandra still run and are complete. No time is judged."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from benchmarks.cassandra.adapters import (
    CALLS,
    EAGER,
    FLOOR,
    FLOOR_READ,
    NAIVE,
    OURS,
    UNFAIR,
)
from benchmarks.cassandra.bars import BARS
from benchmarks.cassandra.run import main
from benchmarks.cassandra.scenarios import SCENARIOS, alone, crowd, turns
from benchmarks.shared.figures import Figures
from benchmarks.shared.turns import CYCLES, LEAST, LONGEST, MOST, RISING
from tests.benchmarks.suites import of_scenarios, quick, samples, verdict_by

CHOSEN = ("C1", "C3", "C4")
"""The others count nothing else; ``nox -s bench -- cassandra`` has them all."""


@pytest.mark.slow
def test_quick_measures_every_peer(tmp_path: Path) -> None:
    """Of what is counted."""
    result, measured = quick("cassandra", tmp_path, *of_scenarios(*CHOSEN))
    for name in CHOSEN:
        peers = {(s.peer, s.loop) for s in measured if s.scenario == name}
        assert peers == set(SCENARIOS[name].entrants)
    silent = {bar["scenario"] for bar in result["bars"] if bar["holds"] is None}
    assert not silent & set(CHOSEN)
    assert len(result["bars"]) == len(BARS)
    assert result["about"]["cassandra"]
    assert result["about"]["nodes"] == 1
    the_server_tells_what_arrived(Figures(measured))
    everybody_gets_in(Figures(measured))


def the_server_tells_what_arrived(figures: Figures) -> None:
    for peer in (FLOOR, FLOOR_READ, OURS, CALLS):
        assert figures.median("C1", alone.CHANGES, peer) == 2
    reads = {FLOOR: 0, FLOOR_READ: 1, CALLS: 1}
    for peer, wanted in reads.items():
        # Once, before the first, it is tried whether there is a quorum.
        assert figures.median("C1", alone.READS, peer) == pytest.approx(wanted, abs=0.1)
    assert 1 <= figures.median("C1", alone.READS, OURS) < 2
    assert figures.median("C3", turns.CHANGES, NAIVE) >= 2
    assert figures.median("C4", crowd.READS, OURS) > 0


def everybody_gets_in(figures: Figures) -> None:
    assert figures.median("C4", crowd.SERVED, OURS) == 1000
    for peer in (NAIVE, OURS, UNFAIR):
        least, most = (figures.median("C3", what, peer) for what in (LEAST, MOST))
        assert 0 <= least <= most
    assert figures.median("C3", RISING, OURS) == 1


def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", os.environ["HOME"])
    with pytest.raises(SystemExit, match="apt-get install default-jre"):
        main(["--quick", "--scenario", "C1"])


# ---------------------------------------------------------------------- bars

verdict = partial(verdict_by, BARS)


@pytest.mark.parametrize(
    ("what", "peer"),
    [("cycle, of the floor's", OURS), ("S0's calls: cycle, of the floor's", CALLS)],
)
def test_a_cycle_is_compared_within_each_repetition(what: str, peer: str) -> None:
    of = ("C1", alone.CYCLE)
    floor = samples(*of, FLOOR, 4, 40, 4)  # the second was disturbed, for both
    held = verdict(f"C1: {what}", floor, samples(*of, peer, 5, 50, 9))
    assert (held.figure, held.holds) == (1.25, True)
    missed = verdict(f"C1: {what}", floor, samples(*of, peer, 5.1, 51, 9))
    assert missed.holds is False


@pytest.mark.parametrize(
    ("what", "peer"),
    [
        ("cycles/s, of the floor's", OURS),
        ("S0's calls: cycles/s, of the floor's", CALLS),
    ],
)
def test_throughput_has_to_reach_four_fifths(what: str, peer: str) -> None:
    of = ("C2", CYCLES)
    floor = samples(*of, FLOOR, 1000)
    assert verdict(f"C2: {what}", floor, samples(*of, peer, 800)).holds is True
    assert verdict(f"C2: {what}", floor, samples(*of, peer, 799)).holds is False


def test_one_key_has_to_be_five_times_the_naive_loop() -> None:
    of, what = ("C3", CYCLES), "C3: cycles/s, of a naive loop's that never pauses"
    naive = samples(*of, EAGER, 50)
    assert verdict(what, naive, samples(*of, OURS, 250)).holds is True
    assert verdict(what, naive, samples(*of, OURS, 249)).holds is False


@pytest.mark.parametrize("name", ["C3", "C3p"])
def test_nobody_starves_and_fences_rise(name: str) -> None:
    waits = (name, LONGEST)
    what = f"{name}: longest wait, of the mean wait"
    assert verdict(what, samples(*waits, OURS, 4, 5, 90)).holds is True
    assert verdict(what, samples(*waits, OURS, 4, 6, 6)).holds is False
    rising = f"{name}: every cycle its own rising fence"
    fences = verdict(rising, samples(name, RISING, OURS, 1, 0, 1))
    assert fences.holds is False


def test_a_crowd_may_change_the_row_five_times_a_second() -> None:
    of = ("C4", crowd.CHANGES, OURS)
    what = "C4: transactions of all waiters"
    assert verdict(what, samples(*of, 5, 5, 9)).holds is True
    assert verdict(what, samples(*of, 5, 6, 6)).holds is False
