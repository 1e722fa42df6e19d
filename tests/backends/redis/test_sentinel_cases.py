"""Cases that the random histories of a connection and its Sentinels have found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.sentinel_state_machine import CONNECT, TICK, SentinelSetup


@pytest.fixture
def setup() -> Iterator[SentinelSetup]:
    """At its end all must be as it must be in the history."""
    setup = SentinelSetup()
    setup.connects()
    yield setup
    setup.is_over()


def test_a_server_that_we_left_carries_nothing_out_when_we_are_back(
    setup: SentinelSetup,
) -> None:
    """Stale Sentinels sent us to another one that took itself for the primary."""
    one, two, _ = setup.truth.servers
    setup.ask([b"a"])
    setup.loop.turn()
    setup.we_are_misled(two)
    assert setup.lines[-1] in two.lines
    setup.comes_to_rest()
    assert one.lines[0].killed


def test_asked_again_while_a_replica_is_named() -> None:
    """For half of the time there is; here it ends just before that."""
    setup = SentinelSetup()
    before, new = setup.truth.primary, setup.truth.servers[1]
    before.obeys(kills=True)
    tick, left = setup.everything_goes_its_way, int(0.45 * CONNECT / TICK)

    def promoted_in_time() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            setup.fails_over(new, "is informed")
            for sentinel in setup.truth.sentinels:
                sentinel.learns()
        tick()

    setup.everything_goes_its_way = promoted_in_time  # type: ignore[method-assign]
    begun = setup.clock.seconds
    setup.connects()
    assert setup.clock.seconds < begun + CONNECT  # at the first attempt
    assert setup.is_there
    assert setup.lines[0] in before.lines
    setup.is_over()
