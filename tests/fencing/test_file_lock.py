"""Who is inside is alone: threads and forked children of one process, too."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aiorwlock_remote.fencing.files import FencedFile, exclusively
from tests.fencing.file_holders import free

flock = fcntl.flock


def at_once(file: int, how: int) -> None:
    """Raises where it would wait."""
    flock(file, how | fcntl.LOCK_NB)


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    file, order = FencedFile(tmp_path / "data"), list[str]()

    def newer() -> None:
        with file.admitted(6):
            order.append("newer")

    with file.admitted(5):
        thread = threading.Thread(target=newer)
        thread.start()
        thread.join(0.2)
        order.append("older")
    thread.join()
    assert order == ["older", "newer"]


def test_the_file_is_locked_until_the_last_task_has_left(tmp_path: Path) -> None:
    """Two tasks on one thread, of one phase: who came first need not leave last."""
    file = FencedFile(tmp_path / "data")
    first, second = file.admitted(5), file.admitted(5)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not free(tmp_path)
    file.write(5, b"x")
    second.__exit__(None, None, None)
    assert free(tmp_path)


def test_a_stay_ended_by_another_thread_has_ended(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "data")
    body = file.admitted(5)
    body.__enter__()
    thread = threading.Thread(target=body.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    file.write(6, b"x")
    assert free(tmp_path)


def test_a_thread_that_comes_while_another_leaves_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stay that ends is not joined any more."""
    lock, came = tmp_path / "lock", list[str]()
    leaving, tried = threading.Event(), threading.Event()

    def slowly(file: int, how: int) -> None:
        if how == fcntl.LOCK_UN and not leaving.is_set():
            leaving.set()
            assert tried.wait(30)
        at_once(file, how)

    monkeypatch.setattr(fcntl, "flock", slowly)
    body = exclusively(lock)
    body.__enter__()
    thread = threading.Thread(target=body.__exit__, args=(None, None, None))
    thread.start()
    assert leaving.wait(30)
    try:
        with pytest.raises(BlockingIOError), exclusively(lock):
            came.append("while it was locked")
    finally:
        tried.set()
        thread.join()
    assert came == []
    with exclusively(lock):
        came.append("then")
    assert came == ["then"]


def test_a_cancelled_wait_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal."""
    monkeypatch.setattr(fcntl, "flock", at_once)
    before = open_files()
    with (tmp_path / "lock").open("wb") as other:
        flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError), exclusively(tmp_path / "lock"):
            pass
    assert open_files() == before
    with exclusively(tmp_path / "lock"):
        pass


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many


def test_a_child_forked_inside_locks_nobody_out(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "data")
    with file.admitted(5):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(1)
    try:
        assert free(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_lock_ends_with_its_process_whoever_was_forked(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"inside\n"
        assert not free(tmp_path)
        process.kill()
        process.wait()
        assert free(tmp_path)
        process.communicate()  # so the child ends


FORKS = """
import os, sys
from aiorwlock_remote.fencing.files import FencedFile

with FencedFile(sys.argv[1]).admitted(5):
    if os.fork():
        os.wait()
    print("inside", flush=True)
    sys.stdin.read()
"""


def test_a_forked_child_is_not_inside(tmp_path: Path) -> None:
    """It waits, as anybody; leaving, it does not end its parent's stay."""
    file = FencedFile(tmp_path / "data")
    reading, writing = os.pipe()
    body = file.admitted(5)
    body.__enter__()
    child = os.fork()
    if not child:
        try:
            body.__exit__(None, None, None)
            os.write(writing, b"a")
            file.write(6, b"theirs")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"a"
    assert not free(tmp_path)
    file.write(5, b"ours")
    body.__exit__(None, None, None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (reading, writing):
        os.close(end)
    assert file.read(6) == b"theirs"


def test_a_child_forked_inside_waits_as_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is at it."""
    file = FencedFile(tmp_path / "data")
    with file.admitted(5):
        child = os.fork()
        if not child:
            monkeypatch.setattr(fcntl, "flock", at_once)
            try:
                file.write(5, b"theirs")
            except BlockingIOError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert file.read(5) is None
