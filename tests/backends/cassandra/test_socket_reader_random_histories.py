"""Each request is sent and answered once, whoever asks and whatever the loop does.

The loop is blocked unless the history turns it. Meanwhile the helper thread has to read
what other threads wait for.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
)

from tests.backends.cassandra.reader_state_machine import ReaderStateMachine
from tests.examples_of_histories import many

SIZE = st.sampled_from([0, 0, 0, 100, 20_000, 300_000])
"""Bytes of a request. The socket does not take the largest at once."""
PART = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.0, 1.0])
"""Of an answer."""


def is_open(history: RandomHistory) -> bool:
    return not history.near.is_closed


class RandomHistory(ReaderStateMachine, RuleBasedStateMachine):
    """One connection."""

    @precondition(is_open)
    @rule(size=SIZE, behind=st.booleans())
    def the_loop_asks(self, size: int, behind: bool) -> None:
        self.loop_asks(size, behind=behind)

    @precondition(is_open)
    @rule(size=SIZE)
    def somebody_else_asks(self, size: int) -> None:
        self.another_asks(size)

    @precondition(is_open)
    @rule(place=st.integers(0, 7), part=PART)
    def it_is_answered(self, place: int, part: float) -> None:
        self.server_says(place, part)

    @precondition(is_open)
    @rule()
    def the_rest_follows(self) -> None:
        self.server_says_the_rest()

    @rule()
    def the_loop_turns(self) -> None:
        self.loop_is_answered()

    @precondition(is_open)
    @rule()
    def the_loop_is_blocked_for_long(self) -> None:
        self.all_arrives()
        self.other_threads_are_answered()

    @precondition(is_open)
    @rule()
    def time_is_up(self) -> None:
        self.it_is_late()

    @precondition(is_open)
    @rule()
    def time_is_not_up(self) -> None:
        self.cancelled_in_time()

    @precondition(is_open)
    @rule(how=st.sampled_from(["it goes on"] * 6 + ["server_hangs_up", "we_close"]))
    def it_may_end(self, how: str) -> None:
        if how != "it goes on":
            getattr(self, how)()

    def teardown(self) -> None:
        """Whatever is still open ends."""
        try:
            self.ends()
        finally:
            self.leave()


TestRandomHistory = RandomHistory.TestCase
TestRandomHistory.settings = settings(max_examples=many(25), stateful_step_count=30)
