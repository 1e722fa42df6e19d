"""Nobody is beside a writer of a pair of keys, and nothing stays: in any order.

As the histories of the mutex set (``test_set_random_histories``), with other scripts.
"""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.examples_of_histories import many
from tests.recipes.fix_pairs import MODES
from tests.recipes.lock_checks import SOME
from tests.recipes.pair_state_machine import PairChecks, PairProcess, Policy
from tests.recipes.redis_histories import LEASES, TIMEOUTS, WAYS, LockStateMachine
from tests.servers.redis import RedisServer

POLICIES: list[Policy] = ["fair", "reader", "writer"]


class PairStateMachine(PairChecks, LockStateMachine):
    """Three processes and other programs at one pair."""

    @initialize(lease=LEASES, policy=st.sampled_from(POLICIES))
    def begins(self, lease: float, policy: Policy) -> None:
        self.process = partial(PairProcess, policy=policy)
        self.begin(lease)

    @rule(
        who=SOME,
        mode=st.sampled_from(MODES),
        timeout=TIMEOUTS,
        way=WAYS,
        by_scope=st.booleans(),
        more=st.sampled_from([0, 0, 1]),
    )
    def comes(
        self,
        who: int,
        mode: str,
        timeout: float | None,
        way: str,
        *,
        by_scope: bool,
        more: int,
    ) -> None:
        for _ in range(1 + more):
            self.come(who, mode, timeout, way, by_scope=by_scope)


def test_random_histories(fresh_redis: RedisServer) -> None:
    class CallbackHistory(PairStateMachine):
        def __init__(self) -> None:
            super().__init__(fresh_redis.port)

    run_state_machine_as_test(
        CallbackHistory,
        settings=settings(max_examples=many(15), stateful_step_count=40),
    )
