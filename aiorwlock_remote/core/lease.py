"""Leases and deadlines: seconds as users write them, microseconds as stores count.

A lease is counted from BEFORE the request that got or renewed it was sent, so the
holder stops believing before the store stops honouring. (A reply-anchored deadline
lets two clients believe at once: model ``LeaseTime``, config T2.)
"""

from __future__ import annotations

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError

MICROS = 1_000_000
MIN_LEASE = 0.2
MAX_SECONDS = 10 * 365 * 86_400.0
DEFAULT_LEASE = 30.0
RENEW_FRACTION = 3
"""A lease is renewed each time a third of it has passed."""
_NUMBERS = int, float


def micros(seconds: float) -> int:
    """Seconds → whole microseconds."""
    return round(seconds * MICROS)


def check_seconds(
    name: str, value: float | None, *, least: float = 0.0, endless: bool = True
) -> None:
    """Refuse what is not a finite number of seconds ≥ ``least``.

    ``endless``: whether None is allowed.

    Raises:
        ConfigurationError: NaN, infinite, negative, too small, or not a number.
    """
    given: object = value
    if given is None and endless:
        return
    if isinstance(given, bool) or not isinstance(given, _NUMBERS):
        raise ConfigurationError(
            what=f"{name} must be a number of seconds, not {type(given).__name__}"
        )
    if not least <= given <= MAX_SECONDS:  # so is NaN
        raise ConfigurationError(
            what=f"{name}={quoted(given)} is out of range",
            hint=f"from {least:g} s to ten years",
        )


def default_margin(lease: float) -> float:
    """Seconds by which a holder stops before its lease ends: clocks drift and step."""
    return max(0.01 * lease, 0.05)


def local_deadline(sent_at: float, lease: float, margin: float | None) -> float:
    """Local time until which a grant may be believed; ``sent_at`` precedes sending."""
    kept_back = default_margin(lease) if margin is None else margin
    return sent_at + lease - kept_back


def renew_at(sent_at: float, lease: float) -> float:
    """Local time at which the next renewal is due."""
    return sent_at + lease / RENEW_FRACTION
