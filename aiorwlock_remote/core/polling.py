"""How long to wait between looks at the store, as a function of given randomness."""

from __future__ import annotations

from dataclasses import dataclass


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
