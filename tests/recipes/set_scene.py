"""Three processes and another program at one mutex set: what must always hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aiorwlock_remote.errors import LockError
from tests.backends.redis.timeless import Defects, Loop
from tests.recipes.acted_sets import Server
from tests.recipes.set_people import PATIENCE, SILENCE, Process, User
from tests.standing import StandingClock

NAMES = ("a", "b")
PROCESSES = 3
SOME = st.integers(0, PROCESSES - 1)
STEP = 0.1
CALM = 4.0  # seconds after which a place has ended
RENEWALS = st.sampled_from(["well", "well", "away", "lost reply"])


class Scene:
    """A server, those who use it, and what they may expect."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.clock = StandingClock()
        self.loop = Loop(self.clock)
        self.defects = Defects()
        self.server = Server(port, self.clock)
        self.processes: list[Process] = []
        self.old: list[Process] = []
        self.users: list[User] = []
        self.extensions: list[asyncio.Task[None]] = []
        self.gone: dict[str, float] = {}
        """When each mutex was last removed or forgotten."""
        self.theirs: dict[str, int] = {}
        """What another program has, and its score."""
        self.lease = 0.0

    def begin(self, lease: float) -> None:
        self.lease = lease
        self.processes = [self.opened() for _ in range(PROCESSES)]
        self.all_are_there()

    def opened(self) -> Process:
        async def opens() -> Process:
            return Process(self.server, len(self.server.lines), self.lease)

        return self.loop.run_until_complete(opens())

    def present(self, wanted: Callable[[User], bool]) -> list[User]:
        return [user for user in self.users if not user.gone and wanted(user)]

    def come(
        self,
        who: int,
        name: str | None,
        timeout: float | None = None,
        way: str = "enters",
        *,
        by_scope: bool = False,
    ) -> User:
        asked = self.processes[who], name, timeout, way
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

    def all_are_there(self) -> None:
        for name in NAMES:
            if self.server.score(name) is None:
                self.server.write(name, 0.0)

    def another_program_takes(self, name: str) -> None:
        """Or gives back, by the published statements."""
        score, now = self.server.score(name), self.server.now / 1e6
        if name in self.theirs:
            self.another_program_gives_back(name)
        elif score is not None and score < now - self.lease:
            self.theirs[name] = int(now)
            self.server.write(name, int(now))

    def another_program_gives_back(self, name: str) -> None:
        if self.server.score(name) == self.theirs.pop(name):
            self.server.write(name, 0.0)

    @rule(who=SOME, answers=st.integers(1, 3), turns=st.integers(0, 2))
    def answers_come(self, who: int, answers: int, turns: int) -> None:
        for _ in range(answers):
            self.processes[who].line.deliver()
        self.loop.turn(turns)

    @rule(steps=st.sampled_from([1, 2, 5, 12, 40]), outcome=RENEWALS)
    def time_passes(self, steps: int, outcome: str) -> None:
        """Keepers see to what they keep."""
        for _ in range(steps):
            self.clock.seconds += STEP
            for process in [*self.processes, *self.old]:
                process.line.time_passed()
                process.the_keeper_has_its_turn(outcome)
            self.loop.turn()
            self.who_waited_for_long_is_told()
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
            line, own = process.line, f"gate{process.number}.0,".encode()
            calm = self.clock.seconds - line.troubled_at > CALM
            if calm and not line.sent and not line.answers:
                lanes = {own + b.encode() for b in process.set._pool._lanes._lanes}
                assert lanes >= {p for p in self.server.places() if p.startswith(own)}

    @invariant()
    def who_believes_has_it(self) -> None:
        for user in self.users:
            if user.believes():
                held = user.held
                assert held is not None
                lease, gone = held._lease, self.gone.get(held.name)
                if not self.server.holds(held.name, lease.ticket, self.lease):
                    assert gone is not None
                    assert lease.since <= gone
                    assert lease.deadline is not None
                    assert lease.deadline < gone + self.lease, "no renewal helped"

    @invariant()
    def nothing_went_wrong(self) -> None:
        assert not self.defects.found
        for user in [user for user in self.users if user.gone]:
            self.users.remove(user)
            user.is_over()

    def who_waited_for_long_is_told(self) -> None:
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
        self.all_are_there()
        for name in list(self.theirs):
            self.another_program_gives_back(name)
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
        self.all_hand_over()
        self.some_are_lost()
        self.a_release_is_lost()
        for process in self.processes:
            process.closes(self.loop)
        self.all_goes_well(5)
        for process in [*self.processes, *self.old]:
            assert process.closing is not None
            assert process.closing.done()
        assert all(task.exception() is None for task in self.extensions)
        assert not asyncio.all_tasks(self.loop)

    def all_hand_over(self) -> None:
        """One mutex from process to process; nothing stays of whoever had it."""
        for name in NAMES:
            first, before = self.come(0, name), self.come(0, name)
            self.all_goes_well(1)
            first.leaves()
            self.all_goes_well(1)
            assert before.believes(), "it asked at once"
            for who in (1, 2, 0):
                after = self.come(who, name)
                self.all_goes_well(1)
                assert after.waits
                before.leaves()
                self.all_goes_well(1)
                assert before.gone
                assert after.believes(), "its turn was told"
                before = after
            self.gives_up_at_the_last_moment(name, before)
        assert not self.server.traces()

    def some_are_lost(self) -> None:
        """Granted late, and not renewed; or removed, and extended by hand."""
        for way in ("enters", "awaits", "tries") if self.lease < PATIENCE * 5 else ():
            for trouble in ("", "LOADING soon"):
                user = self.come(0, "a", way=way)
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
                user.was_told_once()
        for way in ("enters", "awaits"):
            user = self.come(0, "a", way=way)
            self.all_goes_well(1)
            self.server.remove("a")
            self.gone["a"] = self.clock.seconds
            self.extend(user)
            self.all_goes_well(1)
            assert not user.believes()
            user.leaves()
            self.all_goes_well(1)
            user.was_told_once()
            self.all_are_there()

    def a_release_is_lost(self) -> None:
        """And is asked for again."""
        for cut in (True, False):
            user = self.come(0, "b")
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

    def extend(self, user: User) -> None:
        async def extend() -> None:
            assert user.held is not None
            with suppress(LockError):
                await user.process.set.update(user.held)

        self.extensions.append(self.loop.create_task(extend()))
        self.loop.turn(1)

    def gives_up_at_the_last_moment(self, name: str, before: User) -> None:
        """When it has just been granted; the next one has it at once."""
        first = self.come(0, name)
        self.all_goes_well(1)
        second = self.come(1, name)
        self.all_goes_well(1)
        before.leaves()
        self.loop.turn()
        before.process.line.carry_out()
        first.process.line.deliver()
        first.process.line.carry_out()
        first.is_cancelled()
        self.all_goes_well(1)
        assert first.gone
        assert second.believes(), "its turn was told"
        second.leaves()
        self.all_goes_well(1)
