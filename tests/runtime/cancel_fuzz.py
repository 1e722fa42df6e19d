"""Histories run again and again, cut off at each point where they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, LockLost, Locks
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock
from tests.runtime.cut_off import Mine

NAME = ("fuzzed", 1)
OTHERS = (("fuzzed", 2), ("fuzzed", 3))
KINDS = ("mutex", "reader", "writer")

Free = Callable[[], object]
Raised = list[Mine]
History = Callable[[Locks, Free, Raised], Coroutine[Any, Any, None]]
AnyLock = Mutex | ReaderLock | WriterLock


def lock_of(locks: Locks, kind: str) -> AnyLock:
    """The fuzzed resource's lock of that kind."""
    if kind == "mutex":
        return locks.mutex(*NAME)
    rwlock = locks.rwlock(*NAME)
    return rwlock.reader if kind == "reader" else rwlock.writer


def in_turn(kind: str) -> History:
    """Wait for another to leave, hold, release, again."""

    async def history(locks: Locks, free: Free, _: Raised) -> None:
        lock = lock_of(locks, kind)
        free()
        async with lock.acquire(timeout=30):
            await checkpoint()
        async with lock:
            await checkpoint()

    return history


def alone(kind: str) -> History:
    """The same with nobody in the way: ``await`` instead of ``async with``."""

    async def history(locks: Locks, free: Free, _: Raised) -> None:
        lock = lock_of(locks, kind)
        free()
        held = await lock.acquire()
        try:
            await checkpoint()
        finally:
            await held.release()
        held_or_none = await lock.try_acquire()
        if held_or_none is not None:
            await held_or_none.release()

    return history


async def several(locks: Locks, free: Free, _: Raised) -> None:
    """Three at once, one of which another holds; entered, then awaited."""
    first, last = (locks.rwlock(*name) for name in OTHERS)
    wanted = first.reader, locks.mutex(*NAME), last.writer
    free()
    async with locks.multi(*wanted, timeout=30):
        await checkpoint()
    async with AsyncExitStack() as stack:
        for held in await locks.multi(*wanted):
            stack.push_async_callback(held.release)


async def moved(locks: Locks, free: Free, _: Raised) -> None:
    """Up as soon as the other reader has left, and down again."""
    async with locks.rwlock(*NAME).reader as reader:
        assert await reader.try_upgrade() is None
        free()
        writer = await reader.upgrade(timeout=30)
        await checkpoint()
        await writer.downgrade()
        await checkpoint()


async def lost(locks: Locks, free: Free, _: Raised) -> None:
    """The lock is broken by somebody, and the body learns of it."""
    free()
    with suppress(LockLost):
        lock = locks.mutex(*NAME)
        async with lock as held:
            await locks.force_release(await lock.info(), reason="fuzzed")
            with suppress(LockLost):
                await held.extend()
            await anyio.sleep_forever()


async def failing(locks: Locks, free: Free, raised: Raised) -> None:
    """A body that fails, with several locks and a moved one around it."""
    names = tuple(locks.mutex(*name) for name in OTHERS)
    free()
    async with locks.multi(*names), locks.rwlock(*NAME).writer as writer:
        await writer.downgrade()
        raised.append(Mine())
        raise raised[0]


@asynccontextmanager
async def somebody(others: Locks, mode: str | None) -> AsyncIterator[Free]:
    """Another process in the way until shortly after it is asked to leave."""
    leave = anyio.Event()

    async def hold(held: Held) -> None:
        await leave.wait()
        for _ in range(3):
            await checkpoint()
        await held.release()

    async with anyio.create_task_group() as group:
        if mode is not None:
            group.start_soon(hold, await lock_of(others, mode).acquire())
        yield leave.set
        leave.set()


async def nothing_left(locks: Locks) -> None:
    """Nobody holds, nobody waits, and it can be had."""
    for name in (NAME, *OTHERS):
        info = await locks.mutex(*name).info()
        assert info.holders == (), info
        assert info.queue == (), info
        held = await locks.mutex(*name).try_acquire()
        assert held is not None
        assert await held.release()


async def settled(*all_locks: Locks) -> None:
    """Requests are carried out in order: one more answer means all before it are."""
    for locks in all_locks:
        for name in (NAME, *OTHERS):
            await locks.mutex(*name).info()


#: By name: the history, and how another process holds the lock at its beginning.
HISTORIES: dict[str, tuple[History, str | None]] = {
    **{f"{kind} in turn": (in_turn(kind), "mutex") for kind in KINDS},
    **{f"{kind} alone": (alone(kind), None) for kind in KINDS},
    "several": (several, "mutex"),
    "moved": (moved, "reader"),
    "lost": (lost, None),
    "failing": (failing, None),
}
