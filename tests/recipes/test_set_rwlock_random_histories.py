"""Nobody is beside a writer of a pair of keys, and nothing stays: in any order."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from tests.examples_of_histories import many
from tests.recipes.fake_pairs import FOREIGN, PairServer
from tests.recipes.fake_server import Server
from tests.recipes.fix_pairs import MODES, READ_KEY, WRITE_KEY, side
from tests.recipes.lock_checks import SOME, LockChecks
from tests.recipes.published import END_READ, END_WRITE, READ, WRITE
from tests.recipes.redis_histories import LEASES, TIMEOUTS, WAYS, LockStateMachine
from tests.recipes.simulated_clients import PATIENCE, Process, User
from tests.servers.redis import RedisServer

# ---- A readers-writer lock on a pair of keys, which processes and programs use


ENTER = {"read": READ, "write": WRITE}
LEAVE = {"read": END_READ, "write": END_WRITE}
KEYS = {"read": READ_KEY, "write": WRITE_KEY}

Policy = Literal["fair", "reader", "writer"]


class PairProcess(Process):
    """Uses one pair."""

    def __init__(
        self, server: Server, number: int, lease: float, *, policy: Policy
    ) -> None:
        self._policy: Policy = policy
        super().__init__(server, number, lease)

    def uses(self, lease: float) -> None:
        use = partial(self.locks.set_rwlock, "catalog", 7, policy=self._policy)
        self.pair = use(lease=lease)
        self.flagging = use(lease=lease, on_lost=self.losses.append)

    def lock(self, target: str | None, *, flagging: bool) -> ReaderLock | WriterLock:
        assert target is not None
        return side(self.flagging if flagging else self.pair, target)

    async def release(self, held: Held, *, remove: bool) -> None:
        del remove  # there is always one
        await held.release()

    def waiting(self) -> Collection[object]:
        return self.lanes()

    def lanes(self) -> list[str]:
        lanes = [lane for g in self.client.queues._queues.values() for lane in g._modes]
        return [str(lane.mode) for lane in lanes if lane.waiters]


class PairChecks(LockChecks):
    """``names``: the modes, each of which another program may want."""

    names = MODES
    calm = 5.0
    server: PairServer

    def __init__(self, port: int, policy: Policy = "reader") -> None:
        super().__init__(partial(PairServer, port))
        self.process = partial(PairProcess, policy=policy)
        self.theirs: set[str] = set()
        """What other programs have."""

    def another_program_comes(self, name: str) -> None:
        if name in self.theirs:
            self.theirs.remove(name)
            assert self._published(LEAVE[name], name), "it had it"
        elif self._published(ENTER[name], name):
            self.theirs.add(name)

    def all_others_leave(self) -> None:
        for name in list(self.theirs):
            self.another_program_comes(name)

    def remove(self, name: str) -> None:
        self.theirs.discard(name)
        self.server.ask("DEL", KEYS[name])

    def all_is_forgotten(self) -> None:
        super().all_is_forgotten()
        self.theirs.clear()

    @staticmethod
    def name_of(held: Held) -> str:
        return held.mode

    def _published(self, text: str, name: str) -> bool:
        who = FOREIGN + name.encode()
        return bool(self.server.evaluate(text, 2, READ_KEY, WRITE_KEY, who))

    def last_things(self) -> None:
        self.all_hand_over()
        for mode in MODES:
            short = self.lease < PATIENCE * 5
            for way in ("enters", "awaits", "tries") if short else ():
                for trouble in ("", "LOADING soon"):
                    self.is_lost(mode, way, trouble)
            for way in ("enters", "awaits"):
                self.is_removed_and_extended(mode, way)
            for cut in (True, False):
                self.a_release_is_lost(mode, cut=cut)

    def all_hand_over(self) -> None:
        """From process to process; nothing stays of whoever had it."""
        before = [self.come(0, "write")]
        self.all_goes_well(1)
        for who, mode in (1, "write"), (2, "read"), (0, "write"), (0, "read"):
            after = [self.come(who, mode)]
            if mode == "read":
                after.append(self.come(1, mode))
            self.all_goes_well(1)
            assert all(user.waits for user in after)
            self.each_leaves(before)
            assert all(user.believes() for user in after), "its turn was announced"
            before = after
        self.each_leaves(before)
        assert not self.server.traces()

    def each_leaves(self, users: list[User]) -> None:
        for user in users:
            user.leaves()
        self.all_goes_well(1)
        assert all(user.gone for user in users)


# ------------------------------------------------------------------------------
# Nobody is beside a writer of a pair of keys, and nothing stays: in any order.
#
# As the histories of the mutex set (``test_set_random_histories``), with other
# scripts.


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
