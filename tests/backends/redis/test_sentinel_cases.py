"""What the story of a link and its Sentinels has brought to light, scene by scene."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.sentinel_state_machine import CONNECT, TICK, Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    """At its end all must be as it must be in the story."""
    scene = Scene()
    scene.connects()
    yield scene
    scene.is_over()


def test_a_server_that_we_left_carries_nothing_out_when_we_are_back(
    scene: Scene,
) -> None:
    """Stale Sentinels sent us to another one that took itself for the primary."""
    one, two, _ = scene.truth.servers
    scene.ask([b"a"])
    scene.loop.turn()
    scene.we_are_misled(two)
    assert scene.lines[-1] in two.lines
    scene.comes_to_rest()
    assert one.lines[0].killed


def test_asked_again_while_a_replica_is_named() -> None:
    """For half of the time there is; here it ends just before that."""
    scene = Scene()
    before, new = scene.truth.primary, scene.truth.servers[1]
    before.obeys(kills=True)
    tick, left = scene.everything_goes_its_way, int(0.45 * CONNECT / TICK)

    def promoted_in_time() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            scene.fails_over(new, "is told")
            for sentinel in scene.truth.sentinels:
                sentinel.learns()
        tick()

    scene.everything_goes_its_way = promoted_in_time  # type: ignore[method-assign]
    begun = scene.clock.seconds
    scene.connects()
    assert scene.clock.seconds < begun + CONNECT  # at the first attempt
    assert scene.is_there
    assert scene.lines[0] in before.lines
    scene.is_over()
