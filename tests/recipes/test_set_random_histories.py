"""Who believes to have a mutex of a set has it, and nothing stays: in any order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from aiorwlock_remote.errors import AcquireUncertain, BackendUnavailable
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.recipes import MutexSet
from tests.examples_of_histories import many
from tests.recipes.fake_sets import SetServer
from tests.recipes.fix_sets import KEY
from tests.recipes.lock_checks import SOME, LockChecks
from tests.recipes.redis_histories import LEASES, TIMEOUTS, WAYS, LockStateMachine
from tests.recipes.simulated_clients import PATIENCE, Process, User
from tests.servers.redis import RedisServer

# --------------------- A mutex set that three processes and another program use


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


# ------------------------------------------------------------------------------
# Who believes to have a mutex of a set has it, and nothing stays: in any order.
#
# The scripts are real, and so is all that runs in a process; what reaches the server
# and what comes back, time, the turns of the loop and of the keepers are the history's
# own.


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


# ------------------ Cases that the random histories of the mutex set have found


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


def test_at_its_very_end_a_grant_is_still_a_grant(checks: MutexSetChecks) -> None:
    """As for other programs, which take what is older than that, and nothing else."""
    now = checks.server.now
    checks.server.write("a", now / 1e6 - checks.lease)
    at_its_end = checks.come(0, "a", timeout=0.0, way="tries")
    assert checks.server.now == now
    checks.all_goes_well(1)
    assert at_its_end.gone
    after_it = checks.come(0, "a", timeout=0.0, way="tries")
    checks.all_goes_well(1)
    assert after_it.believes()
    after_it.leaves()
    checks.all_goes_well(1)
