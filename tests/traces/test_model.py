"""TLC accepts histories of the core as behaviours of the model, and no others."""

from __future__ import annotations

import pytest

from tests.traces.abstraction import ModelStep, sample
from tests.traces.faults import PLANTED
from tests.traces.history import Request
from tests.traces.random_histories import CLIENTS, tell
from tests.traces.tla import Verdict, validate

pytestmark = pytest.mark.slow
SOUND = range(10)
LENGTH = 60


def _steps(story: list[Request]) -> list[ModelStep]:
    return sample(story, CLIENTS, LENGTH)


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    """Of the sound histories, then of one with each fault: one run of TLC."""
    histories = [tell(seed, LENGTH) for seed in SOUND]
    for plant in PLANTED.values():
        with plant():
            histories.append(tell(1, LENGTH))
    return validate(list(map(_steps, histories)))


def test_histories_of_the_core_are_behaviours_of_the_model(verdict: Verdict) -> None:
    assert not verdict.violated
    assert verdict.reached[: len(SOUND)] == (LENGTH,) * len(SOUND)


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=list(PLANTED))
def test_a_broken_rule_is_no_behaviour_of_the_model(
    verdict: Verdict, number: int
) -> None:
    assert verdict.reached[len(SOUND) + number] < LENGTH
