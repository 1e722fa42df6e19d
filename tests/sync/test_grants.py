"""Grants in threads: whose they are, what a loss does, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import trio

from aiorwlock_remote.locks.held import state_of
from aiorwlock_remote.sync import (
    ConfigurationError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    MovingLock,
    NotOwner,
    WouldDeadlock,
    connect,
)
from aiorwlock_remote.sync import background as sync_background
from tests.servers.process import until
from tests.servers.redis import RedisServer


def in_a_thread(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(30)


@pytest.fixture
def locks() -> Iterator[Locks]:
    with connect(f"memory://{uuid4().hex}") as opened:
        yield opened


def test_a_thread_that_holds_it_would_wait_for_itself(locks: Locks) -> None:
    lock = locks.mutex("order", 1)
    with lock as held:
        for again in (lock.acquire, lock.try_acquire, lock.__enter__):
            with pytest.raises(WouldDeadlock):
                again()

        def elsewhere() -> None:
            with pytest.raises(LockTimeout):
                lock.acquire(timeout=0.01)

        in_a_thread(elsewhere)
        held.check()
    with pytest.raises(NotOwner):
        lock.__exit__(None, None, None)


def test_a_grant_keeps_its_locks_open() -> None:
    """Though the program refers to the grant alone; dropped with it, both are over."""
    url = f"memory://{uuid4().hex}"
    with connect(url) as others:
        held = connect(url).mutex("order", 1).try_acquire()
        assert held is not None
        reader = connect(url).rwlock("order", 2).writer.acquire().downgrade()
        gc.collect()
        with connect(url).mutex("order", 3).acquire() as body:
            gc.collect()
            body.check()
            assert others.mutex("order", 3).locked()
        held.check()
        reader.check()
        for number in (1, 2):
            assert others.rwlock("order", number).writer.try_acquire() is None
        with pytest.warns(ResourceWarning, match="order/1.*dropped without release"):
            del held
        reader.release()
        others.mutex("order", 1).acquire(30).release()


def test_any_thread_may_release(locks: Locks) -> None:
    lock = locks.mutex("order", 1)
    held = lock.acquire()
    assert in_a_thread(held.release) is True
    assert held.release() is False
    with lock:
        pass


def test_a_thread_that_dies_gives_back(
    locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    lock = locks.mutex("order", 1, lease=300)

    def die() -> None:
        held = lock.acquire()
        raise ValueError(held.fence)

    with (
        pytest.warns(ResourceWarning, match="dropped without release"),
        pytest.raises(ValueError, match=r"^\d+$"),
    ):
        in_a_thread(die)
    until(lambda: not lock.locked(), "given back")
    assert any(
        text.startswith("dropped grant=<Held order/1") for text in caplog.messages
    )


def test_many_threads_call_at_once() -> None:
    loop, together = sync_background.background(), threading.Barrier(16)

    async def twice(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    def call() -> int:
        together.wait()
        return sum(loop.run(twice, number) for number in range(100))

    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(call) for _ in range(16)]
        assert {one.result(60) for one in calls} == {9900}
    assert not loop._running


def test_garbage_is_closed(url: str) -> None:
    """Without a warning, in whatever order the collector calls the destructors."""
    cycle: list[object] = [connect(url)]
    cycle.append(cycle)
    del cycle
    gc.collect()


@pytest.mark.parametrize("kind", ["mutex", "moving", "occupancy"])
def test_a_grant_in_garbage_warns_once(redis_server: RedisServer, kind: str) -> None:
    """By its own destructor, though the collector calls that of its twin before."""
    with (
        connect(f"{redis_server.url}?prefix={kind}") as locks,
        connect(f"memory://{uuid4().hex}") as others,
    ):
        mutex = locks.mutex("order", 1)
        attempts: dict[str, Callable[[], Any]] = {
            "mutex": mutex.try_acquire,
            "moving": MovingLock(mutex, others.mutex("order", 1)).try_acquire,
            "occupancy": lambda: locks.occupancy().try_occupy(("book", 43), 1),
        }
        grants: list[Any] = []

        def is_granted() -> bool:
            grants.append(attempts[kind]())
            return grants[-1] is not None

        assert is_granted()
        cycle: list[object] = [grants.pop()]
        cycle.append(cycle)
        gc.collect()
        with pytest.warns(ResourceWarning) as warned:  # noqa: PT031 - it may come at once
            del cycle
            gc.collect()
        assert len(warned) == 1
        assert str(warned[0].message).endswith("; it is given back")
        until(is_granted, "given back")
        grants[-1].release()


def test_an_upgraded_grant_that_is_ignored_is_kept(locks: Locks) -> None:
    rw = locks.rwlock("order", 1)
    with rw.writer.acquire() as held:
        held.downgrade()
        gc.collect()
        (holder,) = rw.info().holders
        assert holder.mode == "read"
        held_again = rw.info().locked
        assert held_again
    assert not rw.locked()


def test_one_result_is_entered_once(locks: Locks) -> None:
    with locks.mutex("order", 1).acquire() as held:
        with pytest.raises(ConfigurationError), held:
            pass
        held.check()
    with pytest.raises(NotOwner), held:
        pass


@pytest.mark.usefixtures("renewed_often")
class TestLoss:
    def lose(self, locks: Locks, held: Held) -> None:
        (seen,) = list(locks.list())
        assert locks.force_release(seen, reason="test") == 1
        until(lambda: held.lost is not None, "lost")

    def test_check_and_the_end_of_with_tell(self, locks: Locks) -> None:
        lock, went_on = locks.mutex("order", 1), False
        with pytest.raises(LockLost) as caught, lock.acquire() as held:
            self.lose(locks, held)
            with pytest.raises(LockLost):
                held.check()
            with pytest.raises(LockLost):
                held.guard(lambda: pytest.fail("it was called"))
            went_on = True
        assert went_on
        assert caught.value.reason == "forced"
        assert pickle.loads(pickle.dumps(caught.value)).reason == "forced"  # noqa: S301

    def test_the_bodys_own_error_comes_first(self, locks: Locks) -> None:
        with pytest.raises(ValueError, match="mine"), locks.mutex("order", 1) as held:
            self.lose(locks, held)
            raise ValueError("mine")

    def test_guard_tells_a_loss_in_its_function(self, locks: Locks) -> None:
        ran: list[int] = []

        def work() -> int:
            self.lose(locks, held)
            ran.append(1)
            return 7

        held = locks.mutex("order", 1).acquire()
        assert held.guard(lambda: 7) == 7
        with pytest.raises(LockLost):
            held.guard(work)
        assert ran == [1]

    def test_on_lost_is_called_in_the_background(self, locks: Locks) -> None:
        losses: list[tuple[Held, str, object]] = []

        def on_lost(lost: Held) -> None:
            try:
                refused: object = lost.release()
            except ConfigurationError as exc:
                refused = exc
            losses.append((lost, threading.current_thread().name, refused))

        with locks.mutex("order", 1, on_lost=on_lost).acquire() as held:
            self.lose(locks, held)
            until(lambda: bool(losses), "called")
        ((lost, thread, refused),) = losses
        assert lost is held
        assert thread == "aiorwlock_remote sync"
        assert "await" in str(refused)

    def test_max_hold(self, locks: Locks) -> None:
        lock = locks.mutex("order", 1, max_hold=0.1)
        with pytest.raises(LockLost) as caught, lock.acquire() as held:
            until(lambda: held.lost is not None, "lost")
            in_a_thread(lambda: locks.mutex("order", 1).acquire(5).release())
        assert caught.value.reason == "stalled"


def test_an_event_loop_is_not_blocked(locks: Locks) -> None:
    held = locks.mutex("order", 1).acquire()

    async def main() -> None:
        for use in (
            lambda: connect("memory://"),
            lambda: locks.mutex("order", 2).acquire(),
            locks.mutex("order", 2).__enter__,
            held.release,
            locks.close,
            lambda: next(iter(locks.list())),
        ):
            with pytest.raises(ConfigurationError, match=r"aiorwlock_remote\.connect"):
                use()
        held.check()

    asyncio.run(main())
    trio.run(main)
    assert held.release()


CYCLES = """
import gc, time
from aiorwlock_remote.sync import connect

with connect("memory://") as locks:
    lock = locks.mutex("order", 1)
    with lock:
        pass
    while gc.collect():
        pass
    gc.disable()
    for _ in range(50):
        with lock.acquire():
            pass
    time.sleep(0.05)
    print(gc.collect())
"""


def test_a_cycle_leaves_no_garbage() -> None:
    """In a process of its own: here, threads of earlier tests may still end."""
    ran = subprocess.run(
        [sys.executable, "-c", CYCLES], stdout=subprocess.PIPE, text=True, check=True
    )
    assert int(ran.stdout) < 25


def test_all_locks_share_a_thread() -> None:
    def loops() -> int:
        names = [thread.name for thread in threading.enumerate()]
        return names.count("aiorwlock_remote sync")

    with (
        connect("memory://one") as one,
        connect("memory://two") as two,
        one.mutex("order", 1),
        two.mutex("order", 1),
    ):
        assert loops() == 1


def test_a_dropped_locks_is_closed(tmp_path: object) -> None:
    """With the last of its grants, which it outlives."""
    url = f"sqlite:///{tmp_path}/locks.db"
    locks = connect(url)
    session, kept = locks._twin._session, locks.mutex("order", 1).acquire()
    del locks
    gc.collect()
    kept.check()
    assert not session.closed
    assert kept.release()
    del kept
    gc.collect()
    until(lambda: session.closed, "closed")


def test_no_copies(locks: Locks) -> None:
    with locks.mutex("order", 1).acquire() as held:
        for thing in (held, locks, locks.mutex("order", 1)):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(thing)


def test_mutex_sets_and_occupied_objects(redis_server: RedisServer) -> None:
    redis_server.ask("FLUSHALL")
    with connect(redis_server.url) as locks:
        licences = locks.mutex_set("licences")
        assert licences.create("one")
        assert list(licences.list()) == ["one"]
        with licences.acquire(timeout=1) as held:
            assert held.name == "one"
            licences.update(held)
            assert in_a_thread(licences.try_acquire) is None
        assert licences.remove("one")
        books, book = locks.occupancy(), ("book", 42)
        with books.occupy(book) as mine:
            mine.extend()
            assert in_a_thread(lambda: books.try_occupy(book)) is None
            assert len(books.holders(book)) == 1
        assert books.holders(book) == ()
        with locks.set_rwlock("a", 1).reader.acquire():
            assert locks.set_rwlock("a", 1).locked()


def test_row_locks(tables: str) -> None:
    with psycopg.connect(tables, autocommit=True) as db:
        db.execute(
            "CREATE TABLE books (id int PRIMARY KEY, lock_mark text DEFAULT 'Unlock',"
            " read_lock_count int DEFAULT 0, lock_reason text, lock_grants text)"
        )
        db.execute("INSERT INTO books (id) VALUES (1)")
    with connect(tables) as locks:
        row = locks.row_lock("books", 1, lease=30)
        with row.write("count", timeout=2) as held:
            held.check()
            assert in_a_thread(row.try_read) is None
        with row.read():
            assert row.look().readers == 1
            assert len(row.grants()) == 1
        assert row.grants() == ()


def test_a_grant_lost_before_its_body_is_released(locks: Locks) -> None:
    """The store may still count it as held, and no body will leave it."""
    lock = locks.mutex("order", 1, lease=300)
    held = lock.acquire()
    lease = state_of(held._twin).lease
    sync_background.background().run_soon(lease.gone, "expired")
    until(lambda: not held.valid, "it is lost")
    with pytest.raises(LockLost), held:
        raise AssertionError("inside")
    until(lambda: not lock.locked(), "it is given back")
