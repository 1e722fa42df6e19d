"""The benchmarks on etcd still run and are complete. No time is judged."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.etcd.adapters import AETCD, FLOOR, KAZOO, MESSAGE, OURS
from benchmarks.etcd.bars import BARS
from benchmarks.etcd.scenarios import CALLS, CALLS_A_CYCLE, CYCLE, SCENARIOS
from benchmarks.harness.measures import HAND_OVER, RISING, SERVED
from benchmarks.harness.report import Figures, NotMeasured
from tests.benchmarks.suites import quick_with_every_peer, samples, verdict_by

CHOSEN = ("alone", "hand-over", "one-key-processes", "waiters")
"""The others count nothing else; ``nox -s bench -- etcd`` has them all."""


@pytest.mark.slow
def test_quick_measures_every_peer(tmp_path: Path) -> None:
    """Of what is counted."""
    about, figures = quick_with_every_peer("etcd", tmp_path, CHOSEN, SCENARIOS, BARS)
    assert about["etcd"]
    assert about["zookeeper"]
    the_server_tells_what_arrived(figures)


def the_server_tells_what_arrived(figures: Figures) -> None:
    for peer, calls in ((FLOOR, 2), (OURS, 2), (AETCD, 3)):
        # The connection is greeted, and a lease granted, once.
        counted = figures.median("alone", CALLS_A_CYCLE, peer)
        assert counted == pytest.approx(calls, abs=0.2)
    with pytest.raises(NotMeasured):
        figures.median("alone", CALLS_A_CYCLE, KAZOO)
    assert figures.median("waiters", CALLS, OURS) < 5
    assert figures.median("waiters", SERVED, OURS) == 1000
    assert figures.median("one-key-processes", RISING, OURS) == 1


verdict = partial(verdict_by, BARS)


def test_a_cycle_is_compared_within_each_repetition() -> None:
    of, what = ("alone", CYCLE), "alone: cycle, of the floor's"
    floor = samples(*of, FLOOR, 2, 20, 2)  # the second was disturbed, for both
    held = verdict(what, floor, samples(*of, OURS, 2.8, 28, 4))
    assert (held.figure, held.holds) == (1.4, True)
    assert verdict(what, floor, samples(*of, OURS, 2.9, 29, 4)).holds is False


def test_a_hand_over_is_judged_by_its_middle() -> None:
    of, what = (
        ("hand-over", HAND_OVER),
        "hand-over: p50, of one transaction and one message",
    )
    floor = samples(*of, MESSAGE, 1, 1, 9)
    assert verdict(what, floor, samples(*of, OURS, 2.5, 2.5, 90)).holds is True
    assert verdict(what, floor, samples(*of, OURS, 2.6, 2.6, 0.1)).holds is False


def test_waiters_send_nothing_while_their_watch_lives() -> None:
    what = "waiters: calls of all waiters"
    of = ("waiters", CALLS, OURS)
    assert verdict(what, samples(*of, 5, 0, 9)).holds is True
    assert verdict(what, samples(*of, 6, 0, 9)).holds is False
