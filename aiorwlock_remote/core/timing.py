"""Leases and deadlines: seconds as users write them, microseconds as stores count.

A lease is counted from BEFORE the request that got or renewed it was sent, so the
holder stops believing before the store stops honouring. (A reply-anchored deadline
lets two clients believe at once: model ``LeaseTime``, config T2.)

How long to wait between looks at the store, as a function of given randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError

MICROS = 1_000_000
MIN_LEASE = 0.2
MAX_SECONDS = 10 * 365 * 86_400.0
DEFAULT_LEASE = 30.0
RENEWALS_PER_LEASE = 3
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
    return sent_at + lease / RENEWALS_PER_LEASE


@dataclass(frozen=True, slots=True)
class PollPolicy:
    """How a store wants to be waited for; seconds.

    A waiter is normally woken by the store; ``poll_min``..``poll_max`` is the jittered
    poll behind that, which also refreshes its place. ``entry_ttl`` is at least three
    polls; ``claim_window`` covers a round trip and its jitter. ``sees_ends``: the store
    wakes also when a lease or a window has ended; nobody needs to look then.
    """

    poll_min: float = 1.0
    poll_max: float = 1.5
    entry_ttl: float = 4.5
    claim_window: float = 0.1
    sees_ends: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.poll_min <= self.poll_max <= self.entry_ttl / 3:
            raise ValueError("a place must live for three polls")


def next_poll(pace: PollPolicy, retry_after: float | None, random: float) -> float:
    """Seconds until a waiter looks again; ``random`` is in [0, 1).

    ``retry_after`` is what the store told of the next change by itself (an expiry, the
    end of a claim window): a waiter is there right then, and never later than its poll.
    """
    if pace.sees_ends:
        retry_after = None
    poll = pace.poll_min + (pace.poll_max - pace.poll_min) * random
    return poll if retry_after is None else min(poll, retry_after)


def back_off(
    attempt: int, random: float, *, first: float = 0.05, longest: float = 1.5
) -> float:
    """Seconds before attempt ``attempt`` + 1 at a store that failed.

    "Full jitter": Brooker, "Exponential backoff and jitter" (2015), but never zero.
    """
    ceiling = min(longest, first * 2.0 ** min(attempt, 10))
    return ceiling * (0.2 + 0.8 * random)
