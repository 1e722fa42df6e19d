"""Now and then: also where each process does it once or twice."""

from __future__ import annotations

import random
from itertools import pairwise

from aiorwlock_remote._util.purge import EveryNth


def test_once_in_so_many_times() -> None:
    seldom = EveryNth(7)
    times = [time for time in range(700) if seldom.now()]
    assert len(times) == 100
    assert {after - before for before, after in pairwise(times)} == {7}


def test_of_all_processes_together() -> None:
    random.seed(1)
    short_lives = (EveryNth(7) for _ in range(700))
    said = sum(life.now() or life.now() for life in short_lives)
    assert 150 < said < 250  # two of seven


def test_in_each_that_lives_long_enough() -> None:
    random.seed(1)
    assert all(any(life.now() for _ in range(7)) for life in map(EveryNth, [7] * 100))
