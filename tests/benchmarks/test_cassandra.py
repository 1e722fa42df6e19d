"""The benchmarks on Cassandra still run and are complete. No time is judged."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from benchmarks.cassandra.__main__ import main
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
from benchmarks.cassandra.scenarios import (
    CHANGES,
    CHANGES_A_CYCLE,
    CYCLE,
    READS,
    READS_A_CYCLE,
    SCENARIOS,
)
from benchmarks.harness.measures import (
    CYCLES,
    LEAST,
    LONGEST,
    MOST,
    RISING,
    SERVED,
)
from benchmarks.harness.report import Figures
from tests.benchmarks.suites import quick_with_every_peer, samples, verdict_by

CHOSEN = ("alone", "one-key", "waiters")
"""The others count nothing else; ``nox -s bench -- cassandra`` has them all."""


@pytest.mark.slow
def test_quick_measures_every_peer(tmp_path: Path) -> None:
    """Of what is counted."""
    about, figures = quick_with_every_peer(
        "cassandra", tmp_path, CHOSEN, SCENARIOS, BARS
    )
    assert about["cassandra"]
    assert about["nodes"] == 1
    the_server_tells_what_arrived(figures)
    everybody_gets_in(figures)


def the_server_tells_what_arrived(figures: Figures) -> None:
    for peer in (FLOOR, FLOOR_READ, OURS, CALLS):
        assert figures.median("alone", CHANGES_A_CYCLE, peer) == 2
    reads = {FLOOR: 0, FLOOR_READ: 1, CALLS: 1}
    for peer, wanted in reads.items():
        # Once, before the first, it is tried whether there is a quorum.
        assert figures.median("alone", READS_A_CYCLE, peer) == pytest.approx(
            wanted, abs=0.1
        )
    assert 1 <= figures.median("alone", READS_A_CYCLE, OURS) < 2
    assert figures.median("one-key", CHANGES_A_CYCLE, NAIVE) >= 2
    assert figures.median("waiters", READS, OURS) > 0


def everybody_gets_in(figures: Figures) -> None:
    assert figures.median("waiters", SERVED, OURS) == 1000
    for peer in (NAIVE, OURS, UNFAIR):
        least, most = (figures.median("one-key", what, peer) for what in (LEAST, MOST))
        assert 0 <= least <= most
    assert figures.median("one-key", RISING, OURS) == 1


def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", os.environ["HOME"])
    with pytest.raises(SystemExit, match="apt-get install default-jre"):
        main(["--quick", "--scenario", "alone"])


# ---------------------------------------------------------------------- bars

verdict = partial(verdict_by, BARS)


@pytest.mark.parametrize(
    ("what", "peer"),
    [
        ("cycle, of the floor's", OURS),
        ("published calls: cycle, of the floor's", CALLS),
    ],
)
def test_a_cycle_is_compared_within_each_repetition(what: str, peer: str) -> None:
    of = ("alone", CYCLE)
    floor = samples(*of, FLOOR, 4, 40, 4)  # the second was disturbed, for both
    held = verdict(f"alone: {what}", floor, samples(*of, peer, 5, 50, 9))
    assert (held.figure, held.holds) == (1.25, True)
    missed = verdict(f"alone: {what}", floor, samples(*of, peer, 5.1, 51, 9))
    assert missed.holds is False


@pytest.mark.parametrize(
    ("what", "peer"),
    [
        ("cycles/s, of the floor's", OURS),
        ("published calls: cycles/s, of the floor's", CALLS),
    ],
)
def test_throughput_has_to_reach_four_fifths(what: str, peer: str) -> None:
    of = ("own-keys", CYCLES)
    floor = samples(*of, FLOOR, 1000)
    assert verdict(f"own-keys: {what}", floor, samples(*of, peer, 800)).holds is True
    assert verdict(f"own-keys: {what}", floor, samples(*of, peer, 799)).holds is False


def test_one_key_has_to_be_five_times_the_naive_loop() -> None:
    of, what = (
        ("one-key", CYCLES),
        "one-key: cycles/s, of a naive loop's that never pauses",
    )
    naive = samples(*of, EAGER, 50)
    assert verdict(what, naive, samples(*of, OURS, 250)).holds is True
    assert verdict(what, naive, samples(*of, OURS, 249)).holds is False


@pytest.mark.parametrize("name", ["one-key", "one-key-processes"])
def test_nobody_starves_and_fences_rise(name: str) -> None:
    waits = (name, LONGEST)
    what = f"{name}: longest wait, of the mean wait"
    assert verdict(what, samples(*waits, OURS, 4, 5, 90)).holds is True
    assert verdict(what, samples(*waits, OURS, 4, 6, 6)).holds is False
    rising = f"{name}: every cycle its own rising fence"
    fences = verdict(rising, samples(name, RISING, OURS, 1, 0, 1))
    assert fences.holds is False


def test_a_crowd_may_change_the_row_five_times_a_second() -> None:
    of = ("waiters", CHANGES, OURS)
    what = "waiters: transactions of all waiters"
    assert verdict(what, samples(*of, 5, 5, 9)).holds is True
    assert verdict(what, samples(*of, 5, 6, 6)).holds is False
