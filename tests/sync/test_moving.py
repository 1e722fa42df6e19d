"""A lock that is held in two stores, in threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockLost,
    LockTimeout,
    NotOwner,
)
from aiorwlock_remote.sync import Locks, MovingLock, connect
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.servers.process import free_port, until

NAME = ("order", 42)
EITHER = pytest.mark.parametrize("store", ["old", "new"])


@dataclass
class Move:
    """An old store and a new one, and another program's locks in each."""

    stores: dict[str, FaultyMemory]
    others: dict[str, Locks]
    lock: MovingLock

    def is_free(self) -> bool:
        return not any(locks.mutex(*NAME).locked() for locks in self.others.values())


@pytest.fixture
def move() -> Iterator[Move]:
    stores = {"old": FaultyMemory(), "new": FaultyMemory()}
    with ExitStack() as stack:
        others = {n: stack.enter_context(connect(s.rival)) for n, s in stores.items()}
        locks = [stack.enter_context(connect(store)) for store in stores.values()]
        yield Move(stores, others, MovingLock(*(one.mutex(*NAME) for one in locks)))


@EITHER
def test_it_excludes_programs_of_either_store(move: Move, store: str) -> None:
    other = move.others[store].mutex(*NAME)
    with move.lock as held:
        assert other.try_acquire() is None
        assert move.lock.locked()
        held.check()
    with other:
        assert move.lock.try_acquire() is None
        with pytest.raises(LockTimeout):
            move.lock.acquire(timeout=0)
    assert move.is_free()


def test_threads_exclude_each_other(move: Move) -> None:
    inside: list[int] = []

    def turn(number: int) -> None:
        with move.lock:
            inside.append(number)
            assert inside == [number]
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(turn, range(40)))
    assert move.is_free()


@EITHER
def test_losing_either_is_raised(move: Move, store: str) -> None:
    with pytest.raises(LockLost), move.lock:
        move.stores[store].lose(*NAME)
    assert move.is_free()
    ran: list[int] = []
    held = move.lock.acquire()
    held.guard(lambda: ran.append(1))
    with pytest.raises(LockLost):
        held.guard(lambda: move.stores[store].lose(*NAME))
    with pytest.raises(LockLost):
        held.guard(lambda: ran.append(2))
    assert ran == [1]
    until(move.is_free, "the lock to be free")


@EITHER
def test_the_error_of_the_body_is_raised(move: Move, store: str) -> None:
    with pytest.raises(KeyError), move.lock:
        move.stores[store].lose(*NAME)
        raise KeyError
    until(move.is_free, "the lock to be free")


def test_a_grant(move: Move) -> None:
    held = move.lock.acquire(reason="move", lease=60)
    assert held.fence == held.old_fence != held.new_fence
    assert (held.resource, held.mode) == (move.lock.resource, move.lock.mode)
    held.extend()
    assert held.release()
    assert not held.release()
    with pytest.raises(NotOwner):
        held.check()
    grants = [move.lock.acquire()]
    with pytest.warns(ResourceWarning, match="was dropped without release"):
        grants.clear()
    until(move.is_free, "the lock to be free")


@EITHER
def test_a_callback_gets_the_grant(move: Move, store: str) -> None:
    lost: list[object] = []
    held = move.lock.acquire(on_lost=lost.append)
    move.stores[store].lose(*NAME)
    until(lambda: lost == [held], "the callback")
    assert not held.release()


@EITHER
def test_a_store_that_is_down_at_the_start(store: str) -> None:
    """As any lock, it is made at the import of a module, and needs the store later."""
    there = FaultyMemory()
    down = f"redis://127.0.0.1:{free_port()}/0"
    with connect(there.rival) as locks:
        pair = locks.mutex(*NAME), connect(down).mutex(*NAME)
        lock = MovingLock(*(pair if store == "new" else pair[::-1]))
        for use in (lock.acquire, lock.try_acquire, lock.__enter__):
            with pytest.raises(BackendUnavailable):
                use()
        assert not locks.mutex(*NAME).locked()


def test_arguments_are_checked(move: Move) -> None:
    old, new = (locks.mutex(*NAME) for locks in move.others.values())
    for wrong in ((old, old), (old, None), (move.others["old"], new)):
        with pytest.raises(ConfigurationError):
            MovingLock(*wrong)
    with pytest.raises(ConfigurationError, match="fence"):
        MovingLock(old, new, fence="both")  # type: ignore[arg-type]
