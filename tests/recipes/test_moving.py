"""A lock that is held in two stores while programs move from one to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import Any

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Closed,
    ConfigurationError,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.locks.acquisition import one_timeout
from aiorwlock_remote.recipes import MovingLock
from aiorwlock_remote.recipes.moving import _with_new
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.fixed_clock import StandingClock

pytestmark = pytest.mark.anyio

NAME = ("order", 42)
PATIENCE = 30.0

Form = Callable[[MovingLock], Coroutine[Any, Any, None]]
"""Acquires a lock, and holds it until the task is cancelled or the lock is lost."""


class Move:
    """An old store and a new one: ``old`` and ``new`` are of the program with both."""

    def __init__(self) -> None:
        self.locks: dict[str, Locks] = {}
        self.others: dict[str, Locks] = {}
        self.stores = {"old": FaultyMemory(), "new": FaultyMemory()}

    async def open(self, stack: AsyncExitStack) -> None:
        for name, store in self.stores.items():
            self.locks[name] = await stack.enter_async_context(connect(store))
            other = connect(store.rival)
            self.others[name] = await stack.enter_async_context(other)
        self.old, self.new = self.locks["old"], self.locks["new"]
        self.lock = MovingLock(self.old.mutex(*NAME), self.new.mutex(*NAME))

    async def is_free(self) -> bool:
        """Whether nobody holds the lock or waits for it, in either store."""
        seen = [await locks.mutex(*NAME).info() for locks in self.others.values()]
        return not any(chain.from_iterable((i.holders, i.queue) for i in seen))

    async def waits_for(self, name: str) -> None:
        """Wait until the lock has a queue in the store."""

        async def queued() -> bool:
            return bool((await self.others[name].mutex(*NAME).info()).queue)

        await wait_until(queued, PATIENCE)


@pytest.fixture
async def move() -> AsyncIterator[Move]:
    move = Move()
    async with AsyncExitStack() as stack:
        await move.open(stack)
        yield move


async def entered(lock: MovingLock) -> None:
    async with lock.acquire():
        await anyio.sleep_forever()


async def awaited(lock: MovingLock) -> None:
    held = await lock.acquire()
    await held.guard(anyio.sleep_forever())


FORMS = pytest.mark.parametrize("form", [entered, awaited])
EITHER = pytest.mark.parametrize("store", ["old", "new"])


@EITHER
async def test_it_excludes_programs_of_either_store(move: Move, store: str) -> None:
    other = move.others[store].mutex(*NAME)
    async with move.lock:
        assert await other.try_acquire() is None
        assert await move.lock.locked()
    async with other:
        assert await move.lock.try_acquire() is None
        assert await move.lock.locked()
        with pytest.raises(LockTimeout) as caught:
            await move.lock.acquire(timeout=0)
    assert len(caught.value.holders) == 1
    assert await move.is_free()


async def test_programs_of_the_two_stores_do_not_exclude_each_other(move: Move) -> None:
    async with move.others["old"].mutex(*NAME), move.others["new"].mutex(*NAME):
        pass


async def test_readers_share_and_exclude_a_writer(move: Move) -> None:
    old, new = move.old.rwlock(*NAME), move.new.rwlock(*NAME)
    readers = MovingLock(old.reader, new.reader)
    others = [move.others[name].rwlock(*NAME) for name in ("old", "new")]
    writer = MovingLock(others[0].writer, others[1].writer)
    async with readers as held:
        assert (held.mode, readers.mode) == ("read", "read")
        assert await writer.try_acquire() is None
        for lock in others:
            async with lock.reader.acquire(timeout=0):
                pass


async def test_permits_of_a_semaphore(move: Move) -> None:
    old, new = (locks.semaphore("api", 1, limit=1) for locks in (move.old, move.new))
    async with MovingLock(old, new):
        for locks in move.others.values():
            assert await locks.semaphore("api", 1, limit=1).try_acquire() is None


@FORMS
async def test_the_old_lock_is_held_during_the_wait_for_the_new_one(
    move: Move, form: Form
) -> None:
    async with move.others["new"].mutex(*NAME), anyio.create_task_group() as tasks:
        tasks.start_soon(form, move.lock)
        await move.waits_for("new")
        assert await move.others["old"].mutex(*NAME).try_acquire() is None
        tasks.cancel_scope.cancel()
    await wait_until(move.is_free, PATIENCE)


@FORMS
@EITHER
async def test_cancelled_in_a_queue_it_leaves_nothing(
    move: Move, form: Form, store: str
) -> None:
    async with move.others[store].mutex(*NAME), anyio.create_task_group() as tasks:
        tasks.start_soon(form, move.lock)
        await move.waits_for(store)
        tasks.cancel_scope.cancel()
    await wait_until(move.is_free, PATIENCE)


@FORMS
@EITHER
async def test_cancelled_before_the_answer_it_leaves_nothing(
    move: Move, form: Form, store: str
) -> None:
    """The store has granted, and the reply is under way."""
    link = move.stores[store].link
    link.hold_back = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(form, move.lock)
        await wait_until(lambda: link.held_back > 0, PATIENCE)
        assert await move.others[store].mutex(*NAME).locked()
        tasks.cancel_scope.cancel()
        link.let_through()
    await wait_until(move.is_free, PATIENCE)


async def try_once(lock: MovingLock) -> None:
    assert await lock.try_acquire() is not None


@EITHER
async def test_a_cancelled_try_leaves_nothing(move: Move, store: str) -> None:
    link = move.stores[store].link
    link.hold_back = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(try_once, move.lock)
        await wait_until(lambda: link.held_back > 0, PATIENCE)
        tasks.cancel_scope.cancel()
        link.let_through()
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_a_cancelled_release_releases_both(move: Move, store: str) -> None:
    held = await move.lock.acquire()
    link = move.stores[store].link
    link.hold_back = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(held.release)
        await wait_until(lambda: link.held_back > 0, PATIENCE)
        tasks.cancel_scope.cancel()
        link.let_through()
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_losing_either_cancels_the_body(move: Move, store: str) -> None:
    with pytest.raises(LockLost) as caught:
        async with move.lock as held:
            move.stores[store].lose(*NAME, "stolen")
            await anyio.sleep_forever()
    assert caught.value.reason == held.lost == "stolen"
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_losing_either_is_losing_the_grant(move: Move, store: str) -> None:
    held = await move.lock.acquire()
    assert (held.valid, held.lost) == (True, None)
    move.stores[store].lose(*NAME, "forced")
    assert (held.valid, held.lost) == (False, "forced")
    assert (held.expires_in or 0.0) <= 0.0
    with pytest.raises(LockLost, match="forced"):
        held.check()
    await wait_until(move.is_free, PATIENCE)
    for use in (held.extend, held.release, partial(held.guard, answer())):
        with pytest.raises(LockLost, match="forced"):
            await use()


@EITHER
async def test_losing_either_cancels_what_is_guarded(move: Move, store: str) -> None:
    held = await move.lock.acquire()

    async def lose() -> None:
        move.stores[store].lose(*NAME)
        await anyio.sleep_forever()

    with pytest.raises(LockLost):
        await held.guard(lose())
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_a_renewal_that_finds_the_loss_of_either(move: Move, store: str) -> None:
    held = await move.lock.acquire()
    locks = move.others[store]
    seen = await locks.mutex(*NAME).info()
    assert await locks.force_release(seen, reason="test") == 1
    with pytest.raises(LockLost):
        await held.extend()
    await wait_until(move.is_free, PATIENCE)


async def given_up(form: Form, lock: MovingLock, errors: list[LockLost]) -> None:
    try:
        with anyio.fail_after(PATIENCE):
            await form(lock)
    except LockLost as exc:
        errors.append(exc)


@FORMS
async def test_the_old_lock_is_lost_during_the_wait_for_the_new_one(
    move: Move, form: Form
) -> None:
    errors: list[LockLost] = []
    async with move.others["new"].mutex(*NAME), anyio.create_task_group() as tasks:
        tasks.start_soon(given_up, form, move.lock, errors)
        await move.waits_for("new")
        move.stores["old"].lose(*NAME, "stolen")
    assert [error.reason for error in errors] == ["stolen"]
    await wait_until(move.is_free, PATIENCE)


@FORMS
async def test_the_old_lock_is_lost_as_the_new_one_is_granted(
    move: Move, form: Form
) -> None:
    link, errors = move.stores["new"].link, list[LockLost]()
    link.hold_back = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(given_up, form, move.lock, errors)
        await wait_until(lambda: link.held_back > 0, PATIENCE)
        link.let_through()
        move.stores["old"].lose(*NAME, "stolen")
    assert [error.reason for error in errors] == ["stolen"]
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_a_store_that_fails_leaves_nothing_in_the_other(
    move: Move, store: str
) -> None:
    with move.stores[store].down():
        for use in (move.lock.acquire, move.lock.try_acquire, move.lock.__aenter__):
            with pytest.raises((AcquireUncertain, BackendUnavailable)):
                await use()
    await wait_until(move.is_free, PATIENCE)


async def test_a_closed_store_leaves_nothing_in_the_other(move: Move) -> None:
    await move.new.aclose()
    for use in (move.lock.acquire, move.lock.try_acquire):
        with pytest.raises(Closed):
            await use()
    await wait_until(move.is_free, PATIENCE)


@EITHER
async def test_a_store_that_is_closed_ends_the_grant(move: Move, store: str) -> None:
    held = await move.lock.acquire()
    await move.locks[store].aclose()
    with pytest.raises(Closed):
        held.check()
    assert not held.valid
    assert not await held.release()
    assert await move.is_free()


async def test_nothing_is_asked_if_the_old_lock_is_lost(move: Move) -> None:
    old = await move.old.mutex(*NAME).acquire()
    move.stores["old"].lose(*NAME)
    with pytest.raises(LockLost):
        await _with_new(old, move.new.mutex(*NAME).try_acquire(), "old")
    assert move.stores["new"].link.sent == []


async def test_the_error_of_the_body_is_raised(move: Move) -> None:
    with pytest.raises(KeyError):
        async with move.lock:
            raise KeyError
    await wait_until(move.is_free, PATIENCE)


def test_one_timeout_for_both() -> None:
    """The second lock is waited for as long as the first one has left."""
    clock = StandingClock()
    with pytest.raises(LockTimeout) as caught, one_timeout(clock, 5) as left:
        assert left() == 5
        clock.seconds += 3
        assert left() == 2
        clock.seconds += 3
        assert left() == 0
        raise LockTimeout(timeout=0)
    assert caught.value.timeout == 5
    with one_timeout(clock, None) as left:
        assert left() is None


@EITHER
async def test_a_timeout_leaves_nothing(move: Move, store: str) -> None:
    async with move.others[store].mutex(*NAME):
        with pytest.raises(LockTimeout) as caught:
            await move.lock.acquire(0.05)
        assert caught.value.timeout == 0.05
        with pytest.raises(LockTimeout) as caught:
            async with move.lock.acquire(0.05):
                pytest.fail("the lock is another's")
        assert caught.value.timeout == 0.05
    await wait_until(move.is_free, PATIENCE)


async def test_fences_are_those_of_the_store_that_was_chosen(move: Move) -> None:
    locks = move.old.mutex(*NAME), move.new.mutex(*NAME)
    async with MovingLock(*locks) as held:
        assert held.fence == held.old_fence != held.new_fence
        seen = await move.others["new"].mutex(*NAME).info()
        assert held.new_fence == seen.holders[0].fence
    async with MovingLock(*locks, fence="new") as held:
        assert held.fence == held.new_fence


async def test_readers_that_hold_together_share_both_fences(move: Move) -> None:
    """So they have two numbers if not all get the fences of one store."""
    locks = [(one["old"], one["new"]) for one in (move.locks, move.others)]
    sides = [[store.rwlock(*NAME).reader for store in pair] for pair in locks]
    first = MovingLock(*sides[0])
    second = MovingLock(*sides[1], fence="new")
    async with first as held, second as other:
        assert held.old_fence == other.old_fence
        assert held.new_fence == other.new_fence
        assert held.fence != other.fence


async def test_a_grant_is_released_once(move: Move) -> None:
    held = await move.lock.acquire(reason="move", lease=60)
    assert held
    assert held.resource == move.lock.resource == "order/42"
    assert held.expires_in is not None
    assert held.expires_in > 30
    for locks in move.others.values():
        (holder,) = (await locks.mutex(*NAME).info()).holders
        assert holder.reason == "move"
    await held.extend()
    assert await held.guard(answer()) == 42
    assert await held.release()
    assert not await held.release()
    for use in (held.extend, partial(held.guard, answer())):
        with pytest.raises(NotOwner):
            await use()
    assert await move.is_free()


async def answer() -> int:
    return 42


async def test_a_lock_without_a_lease(move: Move) -> None:
    async with move.lock.acquire(lease=None) as held:
        assert held.expires_in is None


async def test_a_dropped_grant_warns(move: Move) -> None:
    grants = [await move.lock.acquire()]
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        grants.clear()


async def test_it_is_not_reentrant(move: Move) -> None:
    async with move.lock:
        with pytest.raises(WouldDeadlock):
            await move.lock.acquire()
    with pytest.raises(NotOwner):
        await move.lock.__aexit__(None, None, None)


async def test_an_attempt_that_is_not_awaited_warns(move: Move) -> None:
    attempts = [move.lock.acquire()]
    with pytest.warns(RuntimeWarning, match="order/42 was never awaited"):
        attempts.clear()


async def test_arguments_are_checked(move: Move) -> None:
    old, new = move.old.mutex(*NAME), move.new.mutex(*NAME)
    wrong: list[tuple[object, ...]] = [
        (old, move.old.mutex("order", 43)),
        (old, move.new.rwlock(*NAME).reader),
        (old, move.new.rwlock(*NAME)),
        (move.old, move.new),
    ]
    for locks in wrong:
        with pytest.raises(ConfigurationError):
            MovingLock(*locks)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="fence"):
        MovingLock(old, new, fence="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout"):
        await move.lock.acquire(timeout=-1)
    with pytest.raises(ConfigurationError):
        await move.lock.acquire(lease=-1)
    assert repr(move.lock) == "<MovingLock 'order/42' write>"
    async with MovingLock(old, new) as held:
        assert repr(held).startswith("<MovingHeld <Held order/42 write fence=")


async def test_loss_by_flag_or_callback(move: Move) -> None:
    lost: list[str | None] = []
    held = await move.lock.acquire(on_lost=lambda held: lost.append(held.lost))
    move.stores["old"].lose(*NAME)
    await wait_until(lambda: bool(lost), PATIENCE)
    assert not await held.release()
    async with move.lock.acquire(on_lost="flag") as held:
        move.stores["new"].lose(*NAME)
    assert held.lost == "expired"
    assert lost == ["expired"]
    await wait_until(move.is_free, PATIENCE)
