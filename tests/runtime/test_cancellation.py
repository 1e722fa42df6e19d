"""Cancellation at every await point of acquire, hold and release: nothing is leaked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock
from tests.runtime.cancel_at import CancelAt

pytestmark = pytest.mark.anyio

AnyLock = Mutex | ReaderLock | WriterLock
Scenario = Callable[[AnyLock, Callable[[], object]], Coroutine[Any, Any, None]]

TRIALS = 60
NAME = ("fuzzed", 1)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture(params=["mutex", "reader", "writer"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which lock is fuzzed."""
    kind: str = request.param
    return kind


def lock_of(locks: Locks, kind: str) -> AnyLock:
    """The fuzzed resource's lock of that kind."""
    if kind == "mutex":
        return locks.mutex(*NAME)
    rwlock = locks.rwlock(*NAME)
    return rwlock.reader if kind == "reader" else rwlock.writer


async def in_turn(lock: AnyLock, free: Callable[[], object]) -> None:
    """Everything that is fuzzed: wait for another to leave, hold, release, again."""
    free()
    async with lock.acquire(timeout=5):
        await checkpoint()
    async with lock:
        await checkpoint()


async def alone(lock: AnyLock, free: Callable[[], object]) -> None:
    """The same with nobody in the way: ``await`` instead of ``async with``."""
    del free
    held = await lock.acquire()
    try:
        await checkpoint()
    finally:
        await held.release()
    held_or_none = await lock.try_acquire()
    if held_or_none is not None:
        await held_or_none.release()


@asynccontextmanager
async def other_holder(
    others: Locks, scenario: Scenario
) -> AsyncIterator[Callable[[], object]]:
    """Another process in the way until shortly after it is told to leave."""
    leave = anyio.Event()

    async def hold(held: Held) -> None:
        await leave.wait()
        for _ in range(3):
            await checkpoint()
        await held.release()

    async with anyio.create_task_group() as group:
        if scenario is in_turn:
            group.start_soon(hold, await others.mutex(*NAME).acquire())
        yield leave.set
        leave.set()


async def by_scope(fuzzed: CancelAt, scope: anyio.CancelScope) -> bool:
    """Run under a scope; whether the cancellation came out of it."""
    with scope:
        await fuzzed
    return scope.cancelled_caught


async def assert_nothing_left(locks: Locks, kind: str) -> None:
    """Soon (what was sent is under way) nobody holds, nobody waits."""
    info = await lock_of(locks, kind).info()
    assert info.holders == (), info
    assert info.queue == (), info
    held = await locks.mutex(*NAME).try_acquire()
    assert held is not None
    assert await held.release()


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("scenario", [in_turn, alone])
async def test_scope_cancelled_at_every_suspension(
    url: str, kind: str, scenario: Scenario, late: bool
) -> None:
    """An anyio scope cancelled at the k-th suspension, for every k."""
    async with connect(url) as locks, connect(url) as others:
        for k in range(1, TRIALS):
            scope = anyio.CancelScope()
            async with other_holder(others, scenario) as free:
                coroutine = scenario(lock_of(locks, kind), free)
                fuzzed = CancelAt(coroutine, k, scope.cancel, late=late)
                caught = await by_scope(fuzzed, scope)
            await _settled(others, locks)
            await assert_nothing_left(locks, kind)
            if fuzzed.suspensions < k:
                assert k > 3, "hardly anything was fuzzed"
                return
            assert caught or fuzzed.suspensions == k, "the cancellation was swallowed"
    pytest.fail(f"more than {TRIALS} suspensions")


async def _settled(*all_locks: Locks) -> None:
    """Requests are carried out in order: one more answer means all before it are."""
    for locks in all_locks:
        await locks.mutex(*NAME).info()


class TestNative:
    """asyncio's own ``Task.cancel``, once, twice, and ``asyncio.timeout``."""

    pytestmark = pytest.mark.asyncio

    @pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
    @pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
    @pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
    @pytest.mark.parametrize("scenario", [in_turn, alone])
    async def test_task_cancelled_at_every_suspension(
        self,
        url: str,
        kind: str,
        scenario: Scenario,
        times: int,
        late: bool,
    ) -> None:
        """``Task.cancel()`` at the k-th suspension, for every k."""
        async with connect(url) as locks, connect(url) as others:
            for k in range(1, TRIALS):
                async with other_holder(others, scenario) as free:
                    coroutine = scenario(lock_of(locks, kind), free)
                    outcome, fuzzed = await self._cancelled(coroutine, k, times, late)
                await _settled(others, locks)
                await assert_nothing_left(locks, kind)
                if fuzzed.suspensions < k:
                    assert k > 3, "hardly anything was fuzzed"
                    return
                done_anyway = outcome is None and fuzzed.suspensions == k
                assert done_anyway or isinstance(outcome, asyncio.CancelledError), (
                    outcome
                )
        pytest.fail(f"more than {TRIALS} suspensions")

    async def _cancelled(
        self, coroutine: Coroutine[Any, Any, None], k: int, times: int, late: bool
    ) -> tuple[BaseException | None, CancelAt]:
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            for _ in range(times):
                loop.call_soon(task.cancel)

        fuzzed = CancelAt(coroutine, k, cancel, late=late)

        async def run() -> None:
            await fuzzed

        task = loop.create_task(run())
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        return outcome, fuzzed

    @pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
    async def test_asyncio_timeout(self, url: str, kind: str) -> None:
        """``asyncio.timeout`` around a wait raises TimeoutError and leaves nothing."""
        async with connect(url) as locks, connect(url) as others:
            held = await others.mutex(*NAME).acquire()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), lock_of(locks, kind):
                    pytest.fail("entered")
            await held.release()
            await _settled(others, locks)
            await assert_nothing_left(locks, kind)
