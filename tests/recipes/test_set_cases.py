"""Scenes that the story of the mutex set led to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.errors import AcquireUncertain, BackendUnavailable
from tests.recipes.set_state_machine import Scene
from tests.recipes.simulated_clients import User
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


def has_it_at_once(scene: Scene, holder: User, following: User) -> None:
    """When it is given back: before any time has passed."""
    before = scene.clock.seconds
    holder.leaves()
    scene.all_goes_well(1)
    assert following.believes()
    assert following.held is not None
    assert following.held._lease.since == before
    assert scene.server.queue() == []
    following.leaves()


@pytest.mark.parametrize("ends", [False, True])
def test_who_was_told_of_a_failure_keeps_no_place(scene: Scene, *, ends: bool) -> None:
    """Though the request was carried out: the others need not wait for it to come."""
    holder = scene.come(0, "a")
    scene.all_goes_well(1)
    failed = scene.come(1, "a")
    failed.process.line.carry_out()
    failed.process.line.cut()
    assert len(scene.server.places()) == 1
    following = scene.come(2, "a")
    scene.all_goes_well(20)
    assert failed.gone
    assert isinstance(failed.error, AcquireUncertain | BackendUnavailable)
    if ends:
        scene.a_process_ends(1)
        scene.all_goes_well(1)
    assert len(scene.server.places()) == 1, "of the one who waits"
    has_it_at_once(scene, holder, following)


@pytest.mark.parametrize("asked", [False, True])
def test_a_place_is_given_up_again_when_that_was_lost(
    scene: Scene, *, asked: bool
) -> None:
    """By whoever is the last to leave, also if it never was the first."""
    holder = scene.come(0, "a")
    scene.all_goes_well(1)
    leaver = scene.come(1, "a")
    if not asked:
        first, leaver = leaver, scene.come(1, "a")
        scene.all_goes_well(1)
        first.is_cancelled()
    scene.all_goes_well(1)
    assert len(scene.server.places()) == 1
    following = scene.come(2, "a")
    scene.all_goes_well(1)
    leaver.is_cancelled()
    scene.loop.turn()
    leaver.process.line.cut()
    scene.all_goes_well(20)
    assert len(scene.server.places()) == 1, "of the one who waits"
    has_it_at_once(scene, holder, following)


def test_who_comes_meanwhile_keeps_the_place(scene: Scene) -> None:
    """What is asked for again takes back the ticket of who left, and nothing else."""
    holder = scene.come(0, "a")
    scene.all_goes_well(1)
    leaver = scene.come(1, "a")
    scene.all_goes_well(1)
    leaver.is_cancelled()
    scene.loop.turn()
    leaver.process.line.cut()
    following = scene.come(1, "a")
    scene.all_goes_well(5)
    assert len(scene.server.places()) == 1
    has_it_at_once(scene, holder, following)


@pytest.mark.parametrize("lost", [False, True])
def test_the_last_one_leaves_while_the_first_one_asks(
    scene: Scene, *, lost: bool
) -> None:
    """The place was kept for the other one: it is given up, at the latest if called."""
    holder = scene.come(0, "a")
    first, second = scene.come(1, "a"), scene.come(1, "a")
    scene.all_goes_well(1)
    following = scene.come(2, "a")
    holder.leaves()
    scene.loop.turn()
    holder.process.line.carry_out()
    first.process.line.deliver()
    second.is_cancelled()
    scene.loop.turn()
    first.process.line.carry_out()
    first.process.line.deliver()
    if lost:
        first.process.line.cut()
    scene.all_goes_well(1)
    assert first.believes()
    assert len(scene.server.places()) == (2 if lost else 1)
    has_it_at_once(scene, first, following)
