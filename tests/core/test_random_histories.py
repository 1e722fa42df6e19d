"""Random histories of clients, foreign programs and lost messages, step by step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from tests.core.machine import CLIENT_IDS, POLICIES, STORIES, Event, Machine
from tests.core.progress import Ending
from tests.core.world import SECOND
from tests.examples_of_histories import many

LEAST_STEPS = 10_000
COMERS = st.tuples(st.sampled_from(["dan", "eve"]), st.sampled_from(LOCK_MODES))


@pytest.mark.parametrize("purges", [False, True])
def test_every_step_of_every_story_is_just(purges: bool) -> None:
    """All policies, stores that purge and that keep; at least 10,000 steps of each."""
    steps = 0

    @settings(max_examples=many(200))
    @given(POLICIES, STORIES)
    def tell(policies: list[Policy], story: list[Event]) -> None:
        nonlocal steps
        machine = Machine(policies, purges=purges)
        machine.run(story)
        steps += machine.steps

    tell()
    assert steps >= LEAST_STEPS


@pytest.mark.parametrize("deaf", [False, True])
@settings(max_examples=many(70))
@given(STORIES)
def test_from_any_state_every_fair_waiter_is_served(
    deaf: bool, story: list[Event]
) -> None:
    """Holders release and waiters keep asking: all are granted in bounded time.

    A lost wake-up costs a poll, an entry whose client is gone its claim window.
    """
    machine = Machine([Policy.FAIR])
    machine.run(story)
    waiters = len(machine.waiting)
    ending = Ending(machine, deaf=deaf)
    ending.play(within=(10 + 3 * waiters) * SECOND)
    assert not (deaf and ending.entered_by_message)


@settings(max_examples=many(70))
@given(STORIES, st.lists(COMERS, max_size=3))
def test_nobody_starves_while_others_come_and_go(
    story: list[Event], comers: list[tuple[str, Mode]]
) -> None:
    """A client that comes back at once, for ever, overtakes others only briefly."""
    machine = Machine([Policy.FAIR])
    machine.run(story)
    waiters = len(machine.waiting)
    churn = tuple(dict.fromkeys(comers))
    ending = Ending(machine, churn=churn)
    ending.play(within=(10 + 3 * waiters) * SECOND)
    turns = waiters + len(CLIENT_IDS) * len(LOCK_MODES)
    assert max(ending.overtaken.values(), default=0) <= 4 * turns
