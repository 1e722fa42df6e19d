"""Cases that the random histories of the mutex set have found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiorwlock_remote.errors import AcquireUncertain, BackendUnavailable
from tests.recipes.set_state_machine import MutexSetChecks
from tests.recipes.simulated_clients import User
from tests.servers.redis import RedisServer


@pytest.fixture
def checks(fresh_redis: RedisServer) -> Iterator[MutexSetChecks]:
    """Ends with all at rest."""
    checks = MutexSetChecks(fresh_redis.port)
    checks.begin(lease=60.0)
    yield checks
    checks.is_over()


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_release_that_removes_is_asked_for_again(
    checks: MutexSetChecks, *, carried_out: bool
) -> None:
    """When its answer was lost: nobody waits for the rest of the lease."""
    user = checks.come(0, "a", way="awaits")
    checks.all_goes_well(1)
    assert user.believes()
    user.leaves(removes=True)
    checks.loop.turn()
    if carried_out:
        user.process.line.carry_out()
    user.process.line.cut()
    checks.all_goes_well(20)
    assert checks.server.score("a") is None


def has_it_at_once(checks: MutexSetChecks, holder: User, following: User) -> None:
    """When it is given back: before any time has passed."""
    before = checks.clock.seconds
    holder.leaves()
    checks.all_goes_well(1)
    assert following.believes()
    assert following.held is not None
    assert following.held._lease.since == before
    assert checks.server.queue() == []
    following.leaves()


@pytest.mark.parametrize("ends", [False, True])
def test_a_failed_acquire_leaves_no_queue_entry(
    checks: MutexSetChecks, *, ends: bool
) -> None:
    """Though the request was carried out: the others need not wait for it to come."""
    holder = checks.come(0, "a")
    checks.all_goes_well(1)
    failed = checks.come(1, "a")
    failed.process.line.carry_out()
    failed.process.line.cut()
    assert len(checks.server.places()) == 1
    following = checks.come(2, "a")
    checks.all_goes_well(20)
    assert failed.gone
    assert isinstance(failed.error, AcquireUncertain | BackendUnavailable)
    if ends:
        checks.a_process_ends(1)
        checks.all_goes_well(1)
    assert len(checks.server.places()) == 1, "of the one who waits"
    has_it_at_once(checks, holder, following)


@pytest.mark.parametrize("asked", [False, True])
def test_a_place_is_given_up_again_when_that_was_lost(
    checks: MutexSetChecks, *, asked: bool
) -> None:
    """By whoever is the last to leave, also if it never was the first."""
    holder = checks.come(0, "a")
    checks.all_goes_well(1)
    leaver = checks.come(1, "a")
    if not asked:
        first, leaver = leaver, checks.come(1, "a")
        checks.all_goes_well(1)
        first.is_cancelled()
    checks.all_goes_well(1)
    assert len(checks.server.places()) == 1
    following = checks.come(2, "a")
    checks.all_goes_well(1)
    leaver.is_cancelled()
    checks.loop.turn()
    leaver.process.line.cut()
    checks.all_goes_well(20)
    assert len(checks.server.places()) == 1, "of the one who waits"
    has_it_at_once(checks, holder, following)


def test_a_task_that_comes_meanwhile_keeps_the_entry(checks: MutexSetChecks) -> None:
    """What is asked for again takes back the ticket of who left, and nothing else."""
    holder = checks.come(0, "a")
    checks.all_goes_well(1)
    leaver = checks.come(1, "a")
    checks.all_goes_well(1)
    leaver.is_cancelled()
    checks.loop.turn()
    leaver.process.line.cut()
    following = checks.come(1, "a")
    checks.all_goes_well(5)
    assert len(checks.server.places()) == 1
    has_it_at_once(checks, holder, following)


@pytest.mark.parametrize("lost", [False, True])
def test_the_last_one_leaves_while_the_first_one_asks(
    checks: MutexSetChecks, *, lost: bool
) -> None:
    """The place was kept for the other one: it is given up, at the latest if called."""
    holder = checks.come(0, "a")
    first, second = checks.come(1, "a"), checks.come(1, "a")
    checks.all_goes_well(1)
    following = checks.come(2, "a")
    holder.leaves()
    checks.loop.turn()
    holder.process.line.carry_out()
    first.process.line.deliver()
    second.is_cancelled()
    checks.loop.turn()
    first.process.line.carry_out()
    first.process.line.deliver()
    if lost:
        first.process.line.cut()
    checks.all_goes_well(1)
    assert first.believes()
    assert len(checks.server.places()) == (2 if lost else 1)
    has_it_at_once(checks, first, following)
