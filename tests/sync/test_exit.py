"""How a process ends that holds locks: at once, killed, or paused past its lease."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from aiorwlock_remote.ports import EventLoop, StoreBase, StoreSettings, WakeCallback
from aiorwlock_remote.sync import Closed, Held, Locks, LockTimeout, connect
from aiorwlock_remote.testing.conformance.harness import StoreLocation, open_location
from tests.forked_children import exit_code, fork

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]


@contextmanager
def program(url: str, work: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-m", "tests.sync.program", url, work]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("work", "code"), [("end", 0), ("leave", 3), ("fail", 1), ("wait", 0)]
)
def test_the_end_gives_back(url: str, work: str, code: int) -> None:
    """The lease is long: who gets in was let in by the exit."""
    with connect(url) as locks, program(url, work) as process:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == code
        assert errors.count("Traceback") == (work == "fail"), errors
        with locks.mutex("order", 1).acquire(timeout=5) as held:
            assert held.valid


def test_a_killed_holder(url: str) -> None:
    with connect(url) as locks, program(url, "hold") as process:
        assert locks.mutex("order", 1).try_acquire() is None
        process.kill()
        with locks.mutex("order", 1).acquire(timeout=30) as held:
            assert held.valid


def test_a_paused_holder_gets_lock_lost(url: str) -> None:
    with connect(url) as locks, program(url, "hold") as process:
        process.send_signal(SIGSTOP)
        with locks.mutex("order", 1).acquire(timeout=30) as held:
            process.send_signal(SIGCONT)
            output, _ = process.communicate("\n", timeout=30)
            assert output == "check LockLost\nexit LockLost\n"
            held.check()


def test_a_body_that_closes_its_own_locks_ends_with_closed(url: str) -> None:
    locks = connect(url)
    with pytest.raises(Closed), locks.mutex("order", 1).acquire() as held:
        locks.close()
        assert not held.valid
    locks.close()


def test_close_ends_the_waits_of_other_threads(url: str) -> None:
    with connect(url) as others, others.mutex("order", 1).acquire():
        locks, errors = connect(url), list[str]()

        def wait() -> None:
            try:
                locks.mutex("order", 1).acquire()
            except Closed as exc:
                errors.append(exc.reason)

        threads = [threading.Thread(target=wait) for _ in range(5)]
        for thread in threads:
            thread.start()
        while locks.statistics().waiting["write"] < len(threads):
            time.sleep(0.01)
        locks.close()
        for thread in threads:
            thread.join(10)
        assert errors == ["closed"] * 5
        assert others.mutex("order", 1).info().queue == ()


# ---- A forked child opens a connection of its own, and never uses the parent's


def in_a_child(work: Callable[[], None]) -> int:
    """Run it in a forked child; return 0 if it raised nothing."""
    child = fork()
    if child:
        return exit_code(child)
    code = 1
    try:
        work()
        code = 0
    finally:
        # A normal exit would end pytest's own work in the child.
        os._exit(code)


def test_locks_made_before_a_fork_work_after_it(url: str) -> None:
    with connect(url) as locks:
        lock, rw = locks.mutex("order", 1), locks.rwlock("order", 2)
        with lock.acquire() as held, rw.reader.acquire():

            def child() -> None:
                assert lock.try_acquire() is None
                with pytest.raises(LockTimeout):
                    rw.writer.acquire(timeout=0.1)
                with rw.reader.acquire(timeout=5) as mine:
                    mine.extend()
                    (own,) = (h for h in rw.info().holders if h.pid == os.getpid())
                    assert own.holder == mine.holder
                with pytest.raises(Closed) as caught:
                    held.extend()
                assert caught.value.reason == "forked"
                with pytest.raises(Closed):
                    held.release()
                with locks.mutex("order", 3):
                    pass
                locks.close()

            assert in_a_child(child) == 0
            held.extend()
            held.check()
            # Replies of one process are not read by the other.
            for _ in range(20):
                with locks.mutex("order", 3):
                    pass
        assert not lock.locked()


def test_a_child_waits_for_its_parent(url: str) -> None:
    with connect(url) as locks:
        lock = locks.mutex("order", 1)
        held = lock.acquire()
        reading, writing = os.pipe()

        def child() -> None:
            os.write(writing, b".")
            with lock.acquire(timeout=30) as mine:
                assert mine.fence > held.fence

        pid = fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            finally:
                os._exit(1)
        os.read(reading, 1)
        while not lock.info().queue:
            pass
        held.release()
        assert exit_code(pid) == 0


def test_a_body_left_in_a_child_releases_nothing(url: str) -> None:
    with connect(url) as locks:
        pid = -1
        try:
            with locks.mutex("order", 1).acquire() as held:
                pid = fork()
                if pid:
                    assert exit_code(pid) == 7
                    held.extend()
        except Closed as exc:
            os._exit(7 if exc.reason == "forked" and pid == 0 else 8)
        finally:
            if pid == 0:
                os._exit(9)


# Not on SQLite, whose own mutexes a thread of the parent may hold in the child.
@pytest.mark.parametrize("url", ["redis", "postgresql"], indirect=True)
def test_a_fork_while_other_threads_call(url: str) -> None:
    with connect(url) as locks:
        over = threading.Event()

        def work(number: int) -> None:
            while not over.is_set():
                with locks.mutex("order", number):
                    pass

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        try:

            def child() -> None:
                with locks.mutex("order", 9).acquire(timeout=20):
                    pass

            for _ in range(5):
                assert in_a_child(child) == 0
        finally:
            over.set()
            for thread in threads:
                thread.join()


class OwnBackend:
    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        return await open_location(StoreLocation("memory://"), loop, wake, settings)


def test_a_client_of_your_own_stays_the_parents() -> None:
    with connect(OwnBackend()) as locks:

        def child() -> None:
            with pytest.raises(Closed) as caught:
                locks.mutex("order", 1).acquire()
            assert caught.value.reason == "forked"

        assert in_a_child(child) == 0


def test_a_child_releases_no_grant_of_its_parent(url: str) -> None:
    """What is dropped there is not given back."""
    kept: list[Held] = []

    def obtain(locks: Locks) -> None:
        kept.append(locks.mutex("order", 1).acquire())

    with connect(url) as locks:
        obtain(locks)
        assert in_a_child(kept.clear) == 0
        kept[0].extend()
        kept.pop().release()
