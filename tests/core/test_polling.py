"""How long to wait between looks at the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.core.polling import PollPolicy, back_off, next_poll

CHANCE = st.floats(0, 1, exclude_max=True)


@given(CHANCE, st.none() | st.floats(0, 100))
def test_the_next_look(random: float, retry_after: float | None) -> None:
    """When the store says, but never later than the poll; jittered."""
    pace = PollPolicy()
    wait = next_poll(pace, retry_after, random)
    assert 0 <= wait <= pace.poll_max
    if retry_after is None:
        assert wait >= pace.poll_min
    else:
        assert wait <= retry_after


@given(st.integers(0, 10_000), CHANCE)
def test_backing_off(attempt: int, random: float) -> None:
    """Longer each time up to a limit, never at once."""
    wait = back_off(attempt, random)
    assert 0 < wait <= 1.5
    assert wait <= back_off(attempt + 1, random)


@pytest.mark.parametrize(
    "pace",
    [
        {"poll_min": 0.0},
        {"poll_min": 2.0, "poll_max": 1.0},
        {"entry_ttl": 4.4},
        {"poll_max": float("nan")},
    ],
)
def test_a_place_outlives_three_polls(pace: dict[str, float]) -> None:
    """Or a live waiter would lose its place."""
    with pytest.raises(ValueError, match="three polls"):
        PollPolicy(**pace)  # type: ignore[arg-type]  # of numbers all


def test_a_store_that_sees_ends_is_looked_at_when_the_poll_is_due() -> None:
    pace = PollPolicy(sees_ends=True)
    assert next_poll(pace, 0.01, 0.0) == next_poll(pace, None, 0.0) == pace.poll_min
