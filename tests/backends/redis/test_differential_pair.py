"""On a pair of keys, too, the scripts do what the core says, as long as we are alone.

What other programs do there is none of the core's: tests/recipes/test_set_rwlock*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from aiorwlock_remote.backends.redis.keys import PairKeys
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.ports import Snapshot
from tests.backends.redis.differential import Comparison, edited, plain
from tests.backends.redis.random_histories import KINDS, ExpectedStep, RandomHistory
from tests.long import mostly_long
from tests.servers.redis import RedisServer

DB = 8
COMMANDS = 6_500
CONTROL_COMMANDS = 4_000
OTHERS = ("steal", "depart", "vanish", "flush", "newer")


class Alone(RandomHistory):
    """Nobody else has ever heard of the resource."""

    def __init__(self, seed: int, seat: str) -> None:
        super().__init__(seed, seat)
        self._kinds = {k: n for k, n in KINDS.items() if k not in OTHERS}


class PairComparison(Comparison):
    """Everything but the seat, which is another one, and how long the keys live."""

    keys = PairKeys

    def random_history(self, seed: int, seat: str, **kind: bool) -> RandomHistory:
        """Always wild: there are no short cuts."""
        assert not kind
        return Alone(seed, seat)

    def check_seen(
        self, expected: ExpectedStep, snapshot: Snapshot, lives: list[int]
    ) -> None:
        """The seat tells who is in it; the keys stay as long as there are readers."""
        assert _seatless(snapshot.record) == _seatless(expected.record)
        assert snapshot.guests == ()
        grants = snapshot.record.grants
        if grants:
            writer = grants[0].mode is Mode.WRITE
            value = f"w{grants[0].ticket}" if writer else "r"
            assert snapshot.seat is not None
            assert snapshot.seat.value == value
            if writer and grants[0].expires is not None:
                assert snapshot.seat.expires == -(-grants[0].expires // 1000) * 1000
            if not writer:
                assert set(lives) <= {-1, -2}, lives
        else:
            assert snapshot.seat is None


def _seatless(record: Doorman) -> Doorman:
    return replace(plain(record), seat=None)


@pytest.mark.parametrize("seed", mostly_long(range(1, 5), 4))
def test_random_histories_agree_with_the_core(
    redis_server: RedisServer, seed: int
) -> None:
    comparison = PairComparison(redis_server.port, DB)
    comparison.run(COMMANDS, seed)
    comparison.close()
    rare = {
        what
        for what in (
            *("Upgrade Granted", "Downgrade Granted", "Adopt Granted"),
            *("heard", "rung", "crowd"),
        )
        if comparison.seen[what] < 2
    }
    assert not rare, comparison.seen


def test_the_unchanged_scripts_pass_the_controls(redis_server: RedisServer) -> None:
    tell(redis_server, str)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("math.ceil(writer.expires / 1000)", "writer.expires / 1000 - 1"),
        (
            "      save.delete_key()\n      pair.writer = nil\n",
            "      pair.writer = nil\n",
        ),
        ("if tickets[1] then call('SADD', SET, unpack(tickets)) end", ""),
        ("members - call('SREM', SET, unpack(some))", "members"),
        ("return doorman.readers > 0 or pair.never_ends()", "return pair.never_ends()"),
        ("return doorman.readers > 0 and 'r' or nil", "return nil"),
    ],
)
def test_a_planted_fault_is_found(
    redis_server: RedisServer, right: str, wrong: str
) -> None:
    with pytest.raises((AssertionError, BadRecord)):
        tell(redis_server, partial(edited, old=right, new=wrong))


def tell(server: RedisServer, change: Callable[[str], str]) -> None:
    comparison = PairComparison(server.port, DB, change=change)
    try:
        comparison.run(CONTROL_COMMANDS, 72)
    finally:
        comparison.close()
