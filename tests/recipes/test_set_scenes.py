"""Scenes that the story of the mutex set led to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recipes.set_scene import Scene
from tests.servers.redis import RedisServer


@pytest.fixture
def scene(fresh_redis: RedisServer) -> Iterator[Scene]:
    """Ends with all at rest."""
    scene = Scene(fresh_redis.port)
    scene.begin(lease=60.0)
    yield scene
    scene.is_over()


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_release_that_removes_is_asked_for_again(
    scene: Scene, *, carried_out: bool
) -> None:
    """When its answer was lost: nobody waits for the rest of the lease."""
    user = scene.come(0, "a", way="awaits")
    scene.all_goes_well(1)
    assert user.believes()
    user.leaves(removes=True)
    scene.loop.turn()
    if carried_out:
        user.process.line.carry_out()
    user.process.line.cut()
    scene.all_goes_well(20)
    assert scene.server.score("a") is None
