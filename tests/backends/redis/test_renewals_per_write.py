"""Many renewals go in several writes: the server serves others in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aiorwlock_remote.backends.redis.store import RENEWALS_PER_WRITE, RedisRenewer
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Renewal, StoreSettings
from tests.fixed_clock import StandingClock

TIMEOUT = 4.0
TOOK = 1.5
"""Seconds until a write is answered."""


class Channel:
    """Answers that no grant is held; ``fails_at``: the write that fails."""

    def __init__(self, clock: StandingClock, fails_at: int | None = None) -> None:
        self.clock = clock
        self.fails_at = fails_at
        self.writes: list[tuple[int, float]] = []
        """How many renewals, and how long they may take."""

    def run_many(self, batch: Sequence[Any], timeout: float) -> list[Any]:
        self.writes.append((len(batch), timeout))
        if len(self.writes) - 1 == self.fails_at:
            raise BackendUnavailable(what="lost")
        self.clock.seconds += TOOK
        return [BackendUnavailable(what="asleep") for _ in batch]


def renewals(many: int) -> list[Renewal]:
    return [
        Renewal(Resource("order", str(number)), "t", 1_000_000)
        for number in range(many)
    ]


@pytest.fixture
def renewer() -> Callable[..., tuple[Channel, RedisRenewer]]:
    def make(fails_at: int | None = None) -> tuple[Channel, RedisRenewer]:
        clock = StandingClock()
        channel: Any = Channel(clock, fails_at)
        return channel, RedisRenewer(channel, StoreSettings("client"), clock)

    return make


Make = Callable[..., tuple[Channel, RedisRenewer]]


def test_each_write_has_the_time_that_is_left(renewer: Make) -> None:
    channel, renews = renewer()
    found = renews.renew(renewals(2 * RENEWALS_PER_WRITE + 7), TIMEOUT)
    assert channel.writes == [
        (RENEWALS_PER_WRITE, TIMEOUT),
        (RENEWALS_PER_WRITE, TIMEOUT - TOOK),
        (7, TIMEOUT - 2 * TOOK),
    ]
    assert len(found) == 2 * RENEWALS_PER_WRITE + 7


def test_no_write_has_less_than_no_time(renewer: Make) -> None:
    channel, renews = renewer()
    renews.renew(renewals(4 * RENEWALS_PER_WRITE), TIMEOUT)
    assert [timeout for _, timeout in channel.writes] == [4.0, 2.5, 1.0, 0.0]


def test_what_was_answered_before_a_failure_counts(renewer: Make) -> None:
    """The others have the error of the write that failed, and are not sent."""
    channel, renews = renewer(fails_at=1)
    found = renews.renew(renewals(3 * RENEWALS_PER_WRITE), TIMEOUT)
    assert len(channel.writes) == 2
    first, rest = found[:RENEWALS_PER_WRITE], found[RENEWALS_PER_WRITE:]
    assert {str(each) for each in first} == {"asleep"}
    assert {str(each) for each in rest} == {"lost"}
    assert len(set(map(id, rest))) == 1, "one error, which is reported once"


def test_if_the_first_write_fails_all_have_failed(renewer: Make) -> None:
    channel, renews = renewer(fails_at=0)
    with pytest.raises(BackendUnavailable, match="lost"):
        renews.renew(renewals(2 * RENEWALS_PER_WRITE), TIMEOUT)
    assert len(channel.writes) == 1
