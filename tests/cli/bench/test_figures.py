"""From times to the lines that people and programs read."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from aiorwlock_remote.cli.bench import (
    HEAD,
    Measurement,
    figures,
    rows,
)
from aiorwlock_remote.testing.checker import quantile

REQUEST = Measurement("request", "a plain request", [0.001, 0.002, 0.003], 0.5)
SLOW = Measurement("slow", "something slow", [0.01 * n for n in range(1, 11)], 2.0)
HELD = Measurement("held", "made to last", [0.2], None)
NONE = Measurement("none", "never came to be", [], 1.0)


@pytest.mark.parametrize(
    ("times", "part", "expected"),
    [
        ([7.0], 0.5, 7.0),
        ([7.0], 0.9, 7.0),
        ([2.0, 1.0], 0.5, 1.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([float(n) for n in range(10, 0, -1)], 0.9, 9.0),
        ([float(n) for n in range(10, 0, -1)], 1.0, 10.0),
        ([float(n) for n in range(1, 12)], 0.9, 10.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_so_many_took_no_longer(
    times: list[float], part: float, expected: float
) -> None:
    assert quantile(times, part) == expected
    least = sum(time <= expected for time in times)
    assert least >= len(times) * part


def test_figures_are_in_proportion_to_the_first() -> None:
    request, slow = figures([REQUEST, SLOW])
    assert (request.count, request.median, request.ratio) == (3, 0.002, 1.0)
    assert request.per_second == 6.0
    assert (slow.count, slow.median, slow.p90) == (10, 0.05, 0.09)
    assert slow.per_second == 5.0
    assert slow.ratio == pytest.approx(25)


def test_an_interval_held_on_purpose_has_no_rate() -> None:
    _, held = figures([REQUEST, HELD])
    assert held.per_second is None
    assert held.ratio == pytest.approx(100)


def test_a_measurement_without_samples_has_no_figures() -> None:
    _, none = figures([REQUEST, NONE])
    assert asdict(none) == {
        "name": "none",
        "meaning": "never came to be",
        "count": 0,
        "median": None,
        "p90": None,
        "per_second": 0.0,
        "ratio": None,
    }


def test_numbers_end_below_each_other() -> None:
    lines = rows(figures([REQUEST, SLOW, HELD, NONE]))
    assert [row[-1] for row in lines[1:]] == [
        one.meaning for one in (REQUEST, SLOW, HELD, NONE)
    ]
    assert tuple(cell.strip() for cell in lines[0]) == HEAD
    for column in list(zip(*lines, strict=True))[:-1]:
        assert len(set(map(len, column))) == 1
        assert not any(cell.endswith(" ") for cell in column)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00000123, "0.00"),
        (0.00123, "1.23"),
        (0.0123, "12.3"),
        (0.123, "123"),
        (12.345, "12345"),
    ],
)
def test_three_digits_say_enough(seconds: float, shown: str) -> None:
    one = Measurement("one", "one", [seconds], None)
    assert rows(figures([one]))[1][0].strip() == shown
