"""Leases, deadlines and polls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.core.timing import (
    MAX_POLL,
    MAX_SECONDS,
    NEAR_WAITERS,
    PollPolicy,
    back_off,
    check_seconds,
    micros,
    next_poll,
    poll_stretch,
)
from aiorwlock_remote.errors import ConfigurationError


@pytest.mark.parametrize("value", [None, 0, 0.5, 30, MAX_SECONDS])
def test_seconds(value: float | None) -> None:
    """None is allowed, for "never" or "for ever"."""
    check_seconds("timeout", value)


@pytest.mark.parametrize(
    "value", [-1, -0.001, math.nan, math.inf, -math.inf, 10**400, True, "5", 2 * 10**9]
)
def test_bad_seconds(value: float) -> None:
    """Anything but a finite number in range is refused; the error names the option."""
    with pytest.raises(ConfigurationError, match="lease"):
        check_seconds("lease", value)


def test_the_least() -> None:
    """A lease is no shorter than a store can honour."""
    check_seconds("lease", 0.2, least=0.2)
    with pytest.raises(ConfigurationError):
        check_seconds("lease", 0.1999, least=0.2)


def test_micros() -> None:
    """Whole microseconds, rounded."""
    assert micros(0.2) == 200_000
    assert micros(1e-7) == 0


CHANCE = st.floats(0, 1, exclude_max=True)


@given(CHANCE, st.none() | st.floats(0, 100))
def test_the_next_look(random: float, retry_after: float | None) -> None:
    """A waiter polls when the store says, and never later than its usual poll."""
    poll_policy = PollPolicy()
    wait = next_poll(poll_policy, retry_after, random)
    assert 0 <= wait <= poll_policy.poll_max
    if retry_after is None:
        assert wait >= poll_policy.poll_min
    else:
        assert wait <= retry_after


@given(st.integers(0, 10_000), CHANCE)
def test_backing_off(attempt: int, random: float) -> None:
    """Pauses grow up to a limit, and are never zero."""
    wait = back_off(attempt, random)
    assert 0 < wait <= 1.5
    assert wait <= back_off(attempt + 1, random)


@pytest.mark.parametrize(
    "poll_policy",
    [
        {"poll_min": 0.0},
        {"poll_min": 2.0, "poll_max": 1.0},
        {"entry_ttl": 4.4},
        {"poll_max": float("nan")},
    ],
)
def test_a_place_outlives_three_polls(poll_policy: dict[str, float]) -> None:
    """A live waiter would lose its entry otherwise."""
    with pytest.raises(ValueError, match="three times poll_max"):
        PollPolicy(**poll_policy)  # type: ignore[arg-type]  # of numbers all


def test_a_store_that_sees_ends_is_looked_at_when_the_poll_is_due() -> None:
    poll_policy = PollPolicy(sees_ends=True)
    assert (
        next_poll(poll_policy, 0.01, 0.0)
        == next_poll(poll_policy, None, 0.0)
        == poll_policy.poll_min
    )


@given(st.integers(0, 10**6), CHANCE)
def test_a_waiter_far_from_the_head_polls_less_often(ahead: int, random: float) -> None:
    """And no less often than its entry, which lives longer by the same factor, needs.

    What ends by time alone is for those near the head to find.
    """
    for poll_policy in (PollPolicy(), PollPolicy(poll_max=6.0, entry_ttl=18.0)):
        stretch = poll_stretch(poll_policy, ahead)
        assert 1.0 <= stretch <= poll_stretch(poll_policy, ahead + 1)
        poll = next_poll(poll_policy, 0.01, random, stretch)
        assert poll == 0.01 if stretch == 1.0 else poll >= poll_policy.poll_min
        assert poll <= max(MAX_POLL, poll_policy.poll_max)
    assert poll_stretch(PollPolicy(), NEAR_WAITERS) == 1.0
    assert poll_stretch(PollPolicy(), 10 * NEAR_WAITERS) == MAX_POLL / 1.5
