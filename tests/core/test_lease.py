"""Leases: what may be asked for, and when a holder stops believing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.core.lease import (
    MAX_SECONDS,
    check_seconds,
    default_margin,
    local_deadline,
    micros,
    renew_at,
)
from aiorwlock_remote.errors import ConfigurationError


@pytest.mark.parametrize("value", [None, 0, 0.5, 30, MAX_SECONDS])
def test_seconds(value: float | None) -> None:
    """None is allowed: never, or for ever."""
    check_seconds("timeout", value)


@pytest.mark.parametrize(
    "value", [-1, -0.001, math.nan, math.inf, -math.inf, 10**400, True, "5", 2 * 10**9]
)
def test_bad_seconds(value: float) -> None:
    """Whatever is not a finite, fitting number; told which option it was."""
    with pytest.raises(ConfigurationError, match="lease"):
        check_seconds("lease", value)


def test_the_least() -> None:
    """A lease is no shorter than a store can honour."""
    check_seconds("lease", 0.2, least=0.2)
    with pytest.raises(ConfigurationError):
        check_seconds("lease", 0.1999, least=0.2)


@given(st.floats(0.2, MAX_SECONDS))
def test_a_holder_stops_before_the_store_does(lease: float) -> None:
    """The margin is taken off, and a renewal is due well before."""
    assert default_margin(lease) >= max(0.05, lease / 100)
    deadline = local_deadline(100.0, lease, None)
    assert renew_at(100.0, lease) < deadline < 100.0 + lease
    assert local_deadline(100.0, lease, 0.0) == 100.0 + lease


def test_micros() -> None:
    """Whole microseconds, rounded."""
    assert micros(0.2) == 200_000
    assert micros(1e-7) == 0
