"""Who believes to have a mutex of a set has it, and nothing stays: in any order.

The scripts are real, and so is all that runs in a process; what reaches the server and
what comes back, time, the turns of the loop and of the keepers are the history's own.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.examples_of_histories import many
from tests.recipes.lock_checks import SOME
from tests.recipes.redis_histories import LEASES, TIMEOUTS, WAYS, LockStateMachine
from tests.recipes.set_state_machine import NAMES, MutexSetChecks
from tests.servers.redis import RedisServer


class MutexSetStateMachine(MutexSetChecks, LockStateMachine):
    """Three processes and another program at one set."""

    @initialize(lease=LEASES)
    def begins(self, lease: float) -> None:
        self.begin(lease)

    @rule(
        who=SOME,
        name=st.sampled_from([None, *NAMES]),
        timeout=TIMEOUTS,
        way=WAYS,
        by_scope=st.booleans(),
        more=st.sampled_from([0, 0, 1]),
    )
    def comes(
        self,
        who: int,
        name: str | None,
        timeout: float | None,
        way: str,
        *,
        by_scope: bool,
        more: int,
    ) -> None:
        for _ in range(1 + more):
            self.come(who, name, timeout, way, by_scope=by_scope)


def test_random_histories(fresh_redis: RedisServer) -> None:
    class CallbackHistory(MutexSetStateMachine):
        def __init__(self) -> None:
            super().__init__(fresh_redis.port)

    run_state_machine_as_test(
        CallbackHistory,
        settings=settings(max_examples=many(25), stateful_step_count=40),
    )
