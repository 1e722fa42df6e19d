"""Several locks at once over a link that fails: all or none, and nothing left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    ConfigurationError,
    Locks,
    LockTimeout,
    OptionArgs,
    Unsupported,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.core.commands import Acquire, Command, Release, Withdraw
from aiorwlock_remote.locks.lock import Mutex
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink

pytestmark = pytest.mark.anyio


def three(locks: Locks, **options: Unpack[OptionArgs]) -> tuple[Mutex, ...]:
    """Not in the order of their names."""
    return tuple(locks.mutex("several", number, **options) for number in (3, 1, 2))


def at_the(number: int, fate: Fate) -> Callable[[Command], Fate]:
    """That fate for so-and-so-many-th acquire."""
    seen: list[Command] = []

    def fated(command: Command) -> Fate:
        if isinstance(command, Acquire):
            seen.append(command)
            if len(seen) == number:
                return fate
        return Fate.PASS

    return fated


async def free(locks: Locks) -> bool:
    return not any([await lock.locked() for lock in three(locks)])


async def test_all_locks_are_requested_at_once(link: FaultyLink, locks: Locks) -> None:
    link.hold_back = True
    async with anyio.create_task_group() as group:
        entered = anyio.Event()

        async def enter() -> None:
            async with locks.multi(*three(locks)) as held:
                assert [one.name for one in held] == ["3", "1", "2"]
                entered.set()

        group.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        assert [type(command) for command in link.sent] == [Acquire] * 3
        link.let_through()
        await entered.wait()
    assert [type(command) for command in link.sent] == [Acquire] * 3 + [Release] * 3


async def test_locks_that_are_not_free_are_waited_for_in_order(
    locks: Locks, near: Locks
) -> None:
    """One is taken: the others go back, and all are acquired one by one."""
    other = await near.mutex("several", 1).acquire()
    async with anyio.create_task_group() as group:

        async def enter() -> None:
            async with locks.multi(*three(locks)) as held:
                assert [one.valid for one in held] == [True] * 3

        group.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        assert not await near.mutex("several", 2).locked()
        assert not await near.mutex("several", 3).locked()
        await other.release()
    assert await free(near)


async def test_the_time_runs_out_while_the_store_is_silent(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    link.hold_back = True
    with pytest.raises(LockTimeout):
        async with locks.multi(*three(locks), timeout=0.05):
            pytest.fail("entered")
    assert isinstance(link.sent[3], Withdraw)
    link.let_through()
    assert await free(near)


@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.REFUSE])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_an_answer_that_never_comes(
    link: FaultyLink, locks: Locks, near: Locks, number: int, fate: Fate
) -> None:
    link.fate = at_the(number, fate)
    with pytest.raises(BackendUnavailable):
        await locks.multi(*three(locks))
    assert await free(near)


async def test_uncertain_when_nothing_comes_back(
    link: FaultyLink, locks: Locks
) -> None:
    link.fate = lambda command: (
        Fate.LOSE if isinstance(command, Acquire) else Fate.REFUSE
    )
    with pytest.raises(AcquireUncertain):
        await locks.multi(*three(locks))


async def test_a_task_that_holds_one_of_the_locks_is_refused(
    link: FaultyLink, locks: Locks
) -> None:
    async with three(locks)[1]:
        sent = len(link.sent)
        with pytest.raises(WouldDeadlock):
            await locks.multi(*three(locks))
        assert len(link.sent) == sent


async def test_locks_of_another_store_are_refused(locks: Locks) -> None:
    """They would be asked for in this one."""
    async with connect("memory://") as others:
        for stranger in (others.mutex("b", 1), locks.rwlock("b", 1), "b"):
            with pytest.raises(ConfigurationError, match="same Locks"):
                await locks.multi(locks.mutex("a", 1), stranger)  # type: ignore[arg-type]
        assert not await others.mutex("b", 1).locked()


async def test_a_store_that_raises_turns_one_away_and_goes_on(
    link: FaultyLink, locks: Locks
) -> None:
    """Not by its answer: a defect. The lane is not left waiting for it."""

    def broken(_: Command) -> Fate:
        link.fate = lambda _: Fate.PASS
        raise TypeError("defect")

    link.fate = broken
    with pytest.raises(TypeError, match="defect"):
        await locks.mutex("several", 1).acquire(5)
    async with locks.mutex("several", 1).acquire(5):
        pass


async def test_one_release_fails(link: FaultyLink, locks: Locks, near: Locks) -> None:
    """The task gets the error, the others are released, that one is repeated."""
    releases: list[Command] = []

    def second_fails(command: Command) -> Fate:
        if isinstance(command, Release):
            releases.append(command)
            return Fate.FORBID if len(releases) == 2 else Fate.PASS
        return Fate.PASS

    async def some_are_free() -> bool:
        return await free(near)

    # Without a lease: else the end of the lease would free what is not released.
    with pytest.raises(Unsupported):
        async with locks.multi(*three(locks, lease=None)):
            link.fate = second_fails
    assert len(releases) >= 3
    held = [lock.resource for lock in three(near) if await lock.locked()]
    assert len(held) <= 1
    await wait_until(some_are_free, 10)


@pytest.mark.parametrize("entered", [True, False])
async def test_a_timeout_error_states_the_given_timeout(
    locks: Locks, near: Locks, *, entered: bool
) -> None:
    """Not what was left of it when the last lock was waited for."""
    taken = await near.mutex("several", 3).acquire()
    several = locks.multi(*three(locks), timeout=0.05)
    with pytest.raises(LockTimeout) as caught:
        if entered:
            async with several:
                pytest.fail("it got in")
        else:
            await several
    assert caught.value.timeout == 0.05
    await taken.release()
