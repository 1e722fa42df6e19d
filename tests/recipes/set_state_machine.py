"""A mutex set that three processes and another program use."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.recipes import MutexSet
from tests.recipes.fake_sets import SetServer
from tests.recipes.fix_sets import KEY
from tests.recipes.lock_checks import LockChecks
from tests.recipes.simulated_clients import PATIENCE, Process, User

NAMES = ("a", "b")


class Named:
    """One mutex of a set, or any."""

    def __init__(self, mutexes: MutexSet, name: str | None) -> None:
        self._set = mutexes
        self._name = name

    def acquire(self, timeout: float | None) -> Acquisition:
        return self._set.acquire(self._name, timeout)

    async def try_acquire(self) -> Held | None:
        return await self._set.try_acquire(self._name)


class SetProcess(Process):
    """Uses one set."""

    def uses(self, lease: float) -> None:
        self.set = self.locks.mutex_set(KEY, lease=lease)
        self.flagging = self.locks.mutex_set(
            KEY, lease=lease, on_lost=self.losses.append
        )
        assert self.set._acquirer is self.flagging._acquirer

    def lock(self, target: str | None, *, flagging: bool) -> Named:
        return Named(self.flagging if flagging else self.set, target)

    async def release(self, held: Held, *, remove: bool) -> None:
        await self.flagging.release(held, remove=remove)

    def waiting(self) -> Collection[object]:
        return [*self.set._acquirer._waiting, *self.set._acquirer._queues]

    def lanes(self) -> list[str]:
        queues = self.set._acquirer._queues
        return [target for target, queue in queues.items() if queue.waiting]


class MutexSetChecks(LockChecks):
    """At two mutexes."""

    process = SetProcess
    names = NAMES
    calm = 4.75
    server: SetServer

    def __init__(self, port: int) -> None:
        super().__init__(partial(SetServer, port))
        self.theirs: dict[str, int] = {}
        """What another program has, and its score."""

    def begin(self, lease: float) -> None:
        super().begin(lease)
        self.all_are_there()

    def all_are_there(self) -> None:
        for name in NAMES:
            if self.server.score(name) is None:
                self.server.write(name, 0.0)

    def another_program_comes(self, name: str) -> None:
        score, now = self.server.score(name), self.server.now / 1e6
        if name in self.theirs:
            self.another_program_leaves(name)
        elif score is not None and score < now - self.lease:
            self.theirs[name] = int(now)
            self.server.write(name, int(now))

    def another_program_leaves(self, name: str) -> None:
        if self.server.score(name) == self.theirs.pop(name):
            self.server.write(name, 0.0)

    def all_others_leave(self) -> None:
        self.all_are_there()
        for name in list(self.theirs):
            self.another_program_leaves(name)

    @staticmethod
    def name_of(held: Held) -> str:
        return held.name

    def remove(self, name: str) -> None:
        self.server.remove(name)

    def last_things(self) -> None:
        self.all_hand_over()
        for way in ("enters", "awaits", "tries") if self.lease < PATIENCE * 5 else ():
            for trouble in ("", "LOADING soon"):
                self.is_lost("a", way, trouble)
        for way in ("enters", "awaits"):
            self.is_removed_and_extended("a", way)
            self.all_are_there()
        for cut in (True, False):
            self.a_release_is_lost("b", cut=cut)

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
                assert after.believes(), "its turn was announced"
                before = after
            self.gives_up_at_the_last_moment(name, before)
        assert not self.server.traces()

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
        assert second.believes(), "its turn was announced"
        second.leaves()
        self.all_goes_well(1)
