"""Three processes and another program at one lock: what must always hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aiorwlock_remote.errors import LockError
from aiorwlock_remote.locks.held import Held
from tests.backends.redis.virtual_time import Defects, Loop
from tests.fixed_clock import StandingClock
from tests.recipes.fake_server import Server
from tests.recipes.simulated_clients import PATIENCE, SILENCE, Process, User

PROCESSES = 3
SOME = st.integers(0, PROCESSES - 1)
STEP = 0.1
RENEWALS = st.sampled_from(["well", "well", "away", "lost reply", "asleep"])


class LockChecks:
    """A server, those who use it, and what they may expect.

    ``names``: what is in ``gone``.
    """

    process: Callable[[Any, int, float], Process]
    names: tuple[str, ...]
    calm: float
    """Seconds after which a place has ended."""

    def __init__(self, server: Callable[[StandingClock], Server]) -> None:
        super().__init__()
        self.clock = StandingClock()
        self.loop = Loop(self.clock)
        self.defects = Defects()
        self.server = server(self.clock)
        self.processes: list[Process] = []
        self.old: list[Process] = []
        self.users: list[User] = []
        self.extensions: list[asyncio.Task[None]] = []
        self.gone: dict[str, float] = {}
        """When each was last removed or forgotten."""
        self.lease = 0.0

    def begin(self, lease: float) -> None:
        self.lease = lease
        self.processes = [self.opened() for _ in range(PROCESSES)]

    def opened(self) -> Process:
        async def opens() -> Process:
            return self.process(self.server, len(self.server.lines), self.lease)

        return self.loop.run_until_complete(opens())

    def present(self, wanted: Callable[[User], bool]) -> list[User]:
        return [user for user in self.users if not user.gone and wanted(user)]

    def come(
        self,
        who: int,
        target: str | None,
        timeout: float | None = None,
        way: str = "enters",
        *,
        by_scope: bool = False,
    ) -> User:
        asked = self.processes[who], target, timeout, way
        user = User(*asked, by_scope=by_scope, loop=self.loop)
        self.users.append(user)
        self.loop.turn(1)
        return user

    def a_process_ends(self, who: int) -> None:
        """And another one begins."""
        process = self.processes[who]
        process.line.connect()
        self.old.append(process)
        self.processes[who] = self.opened()
        process.closes(self.loop)
        self.loop.turn()

    def all_is_forgotten(self) -> None:
        self.gone = dict.fromkeys(self.names, self.clock.seconds)
        self.server.forget()

    def another_program_comes(self, name: str) -> None:
        """Or leaves, by the published statements."""
        raise NotImplementedError

    def all_others_leave(self) -> None:
        """All is as it was at first, but for our own."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """As somebody does who has the right to."""
        raise NotImplementedError

    @staticmethod
    def name_of(held: Held) -> str:
        """One of ``names``."""
        raise NotImplementedError

    def is_removed(self, name: str) -> None:
        self.gone[name] = self.clock.seconds
        self.remove(name)

    def extend(self, user: User) -> None:
        async def extend() -> None:
            assert user.held is not None
            with suppress(LockError):
                await user.held.extend()

        self.extensions.append(self.loop.create_task(extend()))
        self.loop.turn(1)

    @rule(who=SOME, answers=st.integers(1, 3), turns=st.integers(0, 2))
    def answers_come(self, who: int, answers: int, turns: int) -> None:
        for _ in range(answers):
            self.processes[who].line.deliver()
        self.loop.turn(turns)

    @rule(steps=st.sampled_from([1, 2, 5, 12, 40]), outcome=RENEWALS)
    def time_passes(self, steps: int, outcome: str) -> None:
        """Keepers see to what they keep, unless they sleep."""
        for _ in range(steps):
            self.clock.seconds += STEP
            for process in [*self.processes, *self.old]:
                process.line.time_passed()
                if outcome != "asleep":
                    process.the_keeper_has_its_turn(outcome)
            self.loop.turn()
            self.a_long_waiter_learns_of_its_loss()
            self.who_believes_has_it()

    @rule(rounds=st.sampled_from([1, 1, 5]))
    def all_goes_well(self, rounds: int) -> None:
        self.server.mood = ""
        for process in self.processes:
            process.line.connect()
        for _ in range(rounds):
            for _ in range(3):
                for process in [*self.processes, *self.old]:
                    while process.line.carry_out() or process.line.deliver():
                        pass
                self.loop.turn()
            self.time_passes(1, "well")
            self.who_does_not_wait_has_no_place()

    def who_does_not_wait_has_no_place(self) -> None:
        """That has not ended, unless it could not be given up."""
        for process in self.processes:
            line, number = process.line, process.number
            calm = self.clock.seconds - line.troubled_at > self.calm
            if calm and not line.sent and not line.answers:
                places = {
                    what for whose, what in self.server.places() if whose == number
                }
                assert places <= set(process.lanes())

    @invariant()
    def who_believes_has_it(self) -> None:
        for user in self.users:
            if user.believes():
                held = user.held
                assert held is not None
                lease = held._lease
                assert lease.deadline is not None
                assert self.clock.seconds < lease.deadline
                if not self.server.holds(held):
                    gone = self.gone.get(self.name_of(held))
                    assert gone is not None
                    assert lease.since <= gone
                    assert lease.deadline < gone + self.lease, "no renewal helped"

    @invariant()
    def nothing_went_wrong(self) -> None:
        assert not self.defects.found
        for user in [user for user in self.users if user.gone]:
            self.users.remove(user)
            user.is_over()

    def a_long_waiter_learns_of_its_loss(self) -> None:
        """At the end of his time; who only tries, when the server is given up."""
        for user in self.users:
            if user.waits and user.until is not None:
                more = SILENCE + 2 * PATIENCE if user.tries else 0.0
                assert self.clock.seconds <= user.until + more + 2 * STEP

    def is_over(self) -> None:
        """All comes to rest."""
        try:
            if self.processes:
                self.comes_to_rest()
        finally:
            self.defects.close()
            self.server.close()
            self.loop.close()

    def comes_to_rest(self) -> None:
        """All are served, and nothing is left of them; who is next is woken at once."""
        self.all_goes_well(1)
        self.all_others_leave()
        for _ in range(10 + 30 * len(self.users)):
            for user in self.present(User.holds):
                user.leaves()
            self.all_goes_well(1)
            self.nothing_went_wrong()
            if not self.users:
                break
        assert not self.users, "all are served"
        self.all_goes_well(30)
        if self.server.bereft:
            self.clock.seconds += self.lease
        assert not self.server.grants(self.lease)
        assert not any(process.owed() for process in [*self.processes, *self.old])
        self.time_passes(10, "well")  # places end that could not be withdrawn
        self.last_things()
        for process in self.processes:
            process.closes(self.loop)
        self.all_goes_well(5)
        for process in [*self.processes, *self.old]:
            assert process.closing is not None
            assert process.closing.done()
        assert all(task.exception() is None for task in self.extensions)
        assert not asyncio.all_tasks(self.loop)

    def last_things(self) -> None:
        """That seldom happen before; nothing stays."""
        raise NotImplementedError

    def is_lost(self, target: str | None, way: str, trouble: str) -> None:
        """Granted late, and not renewed."""
        user = self.come(0, target, way=way)
        user.process.line.carry_out()
        self.time_passes(4, "well")
        self.answers_come(0, 1, 2)
        assert user.believes()
        self.server.mood = trouble
        outcome = "well" if trouble else "away"
        self.time_passes(round(self.lease / STEP), outcome)
        assert not user.believes()
        user.leaves()
        self.all_goes_well(3)
        user.lost_once()

    def is_removed_and_extended(self, target: str, way: str) -> None:
        user = self.come(0, target, way=way)
        self.all_goes_well(1)
        assert user.held is not None
        self.is_removed(self.name_of(user.held))
        self.extend(user)
        self.all_goes_well(1)
        assert not user.believes()
        user.leaves()
        self.all_goes_well(1)
        user.lost_once()

    def a_release_is_lost(self, target: str, *, cut: bool) -> None:
        """And is asked for again."""
        user = self.come(0, target)
        self.all_goes_well(1)
        user.leaves()
        self.loop.turn()
        if cut:
            user.process.line.cut()
        else:
            self.server.mood = "LOADING soon"
            user.process.line.carry_out()
        self.all_goes_well(20)
        assert not self.server.grants(self.lease)
