"""What the story of a link and its Sentinels has brought to light, scene by scene."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.redis.sentinel_scene import Scene


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
