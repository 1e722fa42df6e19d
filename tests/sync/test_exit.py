"""How a process ends that holds locks: at once, killed, or paused past its lease."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from aiorwlock_remote.sync import Closed, connect

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


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
