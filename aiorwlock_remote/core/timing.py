"""Durations: seconds for users, microseconds for stores; polls and pauses."""

from __future__ import annotations

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import ConfigurationError

MICROS = 1_000_000
# All in seconds.
MIN_LEASE = 0.2
MAX_SECONDS = 10 * 365 * 86_400.0
DEFAULT_LEASE = 30.0
MIN_MARGIN = 0.05
MAX_POLL = 5.0
"""The longest poll of a waiter with many ahead of it; its entry lives for three."""
MIN_TURN = 0.01
"""Seconds that a turn takes at least in a long queue: ``pause_behind`` relies on it."""
NEAR_WAITERS = 16
"""So many waiters at the head of a queue poll at the store's usual poll_policy."""
_NUMBERS = int, float


def micros(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * MICROS)


def check_seconds(
    name: str, value: float | None, *, least: float = 0.0, endless: bool = True
) -> None:
    """Raise ``ConfigurationError`` unless ``value`` is a finite number >= ``least``.

    ``name``: the option, for the error. ``endless``: whether None is allowed, too.
    """
    given: object = value
    if given is None and endless:
        return
    if isinstance(given, bool) or not isinstance(given, _NUMBERS):
        raise ConfigurationError(
            what=f"{name} must be a number of seconds, not {type(given).__name__}"
        )
    if not least <= given <= MAX_SECONDS:  # NaN fails this, too
        raise ConfigurationError(
            what=f"{name}={quoted(given)} is out of range",
            hint=f"from {least:g} s to ten years",
        )


@value
class PollPolicy:
    """How a store wants its waiters to wait. All times are seconds.

    Attributes:
        poll_min, poll_max: Range of the jittered poll that backs up the store's
            wake-ups. A poll also refreshes the queue entry.
        entry_ttl: Life of a queue entry without a refresh: at least three polls.
        claim_window: Time to claim an offered resource: a round trip and its jitter.
        sees_ends: Whether the store also wakes waiters when a lease or claim window
            ends, so that no poll is needed then.
        pushes: Whether a message of the store may grant a waiting writer its lock, for
            one claim window (``core/pushed.py``). The store's replies then have to say
            what its clock shows. A process that stands still for so long after such a
            grant loses it, so the window is longer than a claim needs.
    """

    poll_min: float = 1.0
    poll_max: float = 1.5
    entry_ttl: float = 4.5
    claim_window: float = 0.1
    sees_ends: bool = False
    pushes: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.poll_min <= self.poll_max <= self.entry_ttl / 3:
            raise ValueError("entry_ttl must be at least three times poll_max")


def pause_behind(turns: int, near: int = NEAR_WAITERS) -> float:
    """Return how many seconds a waiter may leave a stored queue unread, if so many
    turns of others come before its own.

    For stores whose waiters read the whole queue. The ``near`` ones at its head read it
    at each change; if all did, a change of a queue of N entries would be read N times.
    """
    return min(MAX_POLL, MIN_TURN * max(0, turns - near))


def poll_stretch(poll_policy: PollPolicy, ahead: int) -> float:
    """Return by which factor a waiter with so many ahead of it polls less often.

    Its queue entry has to live longer by the same factor. A store that wakes its
    waiters needs their polls as a backup and to keep their entries. With the same
    intervals for all, a queue of N entries would be read N times in each interval.
    """
    return max(1.0, min(ahead / NEAR_WAITERS, MAX_POLL / poll_policy.poll_max))


def next_poll(
    poll_policy: PollPolicy,
    retry_after: float | None,
    random: float,
    stretch: float = 1.0,
) -> float:
    """Return the seconds until a waiter polls again.

    Args:
        poll_policy: The store's.
        retry_after: Seconds until the store expects a change by time alone (an expiry,
            the end of a claim window): the waiter polls then, unless its usual poll
            comes first.
        random: The jitter, in [0, 1).
        stretch: The factor of ``poll_stretch``. Above 1 others are nearer to the head:
            the change by time alone is for them to find.
    """
    # Such a store wakes the waiter then; a poll at that moment would only be traffic.
    if poll_policy.sees_ends or stretch > 1.0:
        retry_after = None
    poll = stretch * (
        poll_policy.poll_min + (poll_policy.poll_max - poll_policy.poll_min) * random
    )
    return poll if retry_after is None else min(poll, retry_after)


def around(seconds: float, random: float, part: float = 0.25) -> float:
    """Return about so many seconds, so that processes do not poll in step.

    ``random``, in [0, 1), chooses from ``seconds`` less or more this ``part``.
    """
    return seconds * (1.0 - part + 2.0 * part * random)


def back_off(
    attempt: int, random: float, *, first: float = 0.05, longest: float = 1.5
) -> float:
    """Return the seconds to pause after ``attempt`` failures in a row, with jitter.

    ``random`` is in [0, 1). The pause doubles from ``first`` up to ``longest`` seconds.
    """
    ceiling = min(longest, first * 2.0 ** min(attempt, 10))
    # "Full jitter" (Brooker, "Exponential backoff and jitter", 2015), but never zero: a
    # pause of nothing would send the next request into the same failure.
    return ceiling * (0.2 + 0.8 * random)
