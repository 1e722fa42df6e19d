"""A fenced file: several processes, killed ones, links, modes, what was spoilt."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aiorwlock_remote import BadRecord, StaleFence, WouldDeadlock
from aiorwlock_remote.fencing.files import FencedFile
from tests.fencing.writer import LINES

FAR = 2**53 - 1


@pytest.mark.slow
def test_killed_writers_leave_whole_contents_and_their_fence(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for _ in range(2):
        writers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.fencing.writer", str(path)],
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        before = path.stat().st_mtime_ns if path.exists() else 0
        while not path.exists() or path.stat().st_mtime_ns == before:
            pass
        for writer in writers:
            writer.kill()
            writer.communicate()
        lines = path.read_text().split()
        assert len(lines) == LINES
        assert len(set(lines)) == 1
        seen = int((tmp_path / ".data.fence").read_text())
        assert seen >= int(lines[0])  # raised before what it lets in
        with pytest.raises(StaleFence):
            FencedFile(path).write(int(lines[0]) - 1, b"late")
    assert FencedFile(path).read(FAR) == path.read_bytes()
    FencedFile(path).write(FAR, b"new")
    assert not list(tmp_path.glob(".*.new"))


def test_nothing_yet(tmp_path: Path) -> None:
    assert FencedFile(tmp_path / "data").read(5) is None
    with pytest.raises(StaleFence):
        FencedFile(tmp_path / "data").write(4, b"late")
    assert not (tmp_path / "data").exists()


def test_a_link_has_the_fence_of_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    FencedFile(tmp_path / "data").write(5, b"x")
    with pytest.raises(StaleFence):
        FencedFile(tmp_path / "link").write(4, b"late")
    FencedFile(tmp_path / "link").write(6, b"y")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "data").read_bytes() == b"y"


def test_the_mode_stays(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x")
    (tmp_path / "data").chmod(0o640)
    FencedFile(tmp_path / "data").write(5, b"y")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o640


def test_nobody_writes_through_a_link_laid_in_the_way(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".data.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        FencedFile(tmp_path / "data").write(5, b"x")
    assert victim.read_bytes() == b"precious"


def test_what_cannot_be_put_in_its_place_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(IsADirectoryError):
        FencedFile(tmp_path / "data").write(5, b"x")
    assert not list(tmp_path.glob(".*.new"))


@pytest.mark.parametrize(
    "spoilt",
    [
        *(b"", b"5", b"x\n", b"-5\n", b"5\n6\n", b"\xd9\xa3\n"),
        *(b"9" * 5000 + b"\n", b"%d\n" % (FAR + 1)),
    ],
)
def test_a_fence_that_cannot_be_read_lets_nobody_in(
    tmp_path: Path, spoilt: bytes
) -> None:
    (tmp_path / ".data.fence").write_bytes(spoilt)
    with pytest.raises(BadRecord):
        FencedFile(tmp_path / "data").write(5, b"x")
    assert not (tmp_path / "data").exists()


def test_a_body_that_fails_lets_the_next_one_in(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "data")
    with pytest.raises(ZeroDivisionError), file.admitted(5):
        raise ZeroDivisionError
    with file.admitted(5):
        pass


def test_who_is_inside_reads_and_writes(tmp_path: Path) -> None:
    """A thread that waited for itself would wait for ever."""
    file = FencedFile(tmp_path / "data")
    with file.admitted(5):
        file.write(5, b"x")
        assert FencedFile(tmp_path / "data").read(5) == b"x"
        with pytest.raises(StaleFence):
            file.write(4, b"late")
        with pytest.raises(WouldDeadlock, match=r"fence 5"):
            file.write(6, b"early")
        with pytest.raises(ZeroDivisionError), file.admitted(5):
            raise ZeroDivisionError
        assert not free(tmp_path)
    assert file.read(5) == b"x"
    file.write(6, b"y")
    assert free(tmp_path)


def test_it_is_locked_until_the_last_one_has_left(tmp_path: Path) -> None:
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


def test_who_leaves_by_another_thread_has_left(tmp_path: Path) -> None:
    file = FencedFile(tmp_path / "data")
    body = file.admitted(5)
    body.__enter__()
    thread = threading.Thread(target=body.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    file.write(6, b"x")
    assert free(tmp_path)


def free(folder: Path) -> bool:
    """Whether anybody else would get in."""
    with (folder / ".data.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


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


def test_on_the_disk_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence and its folder come before the data, the data before its name."""
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(file: int) -> None:
        done.append("sync " + Path(f"/proc/self/fd/{file}").readlink().name)
        sync(file)

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"rename {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    FencedFile(tmp_path / "data").write(5, b"x")
    folder = f"sync {tmp_path.name}"
    assert done == [
        *("sync ..data.fence.new", "rename .data.fence", folder),
        *("sync .data.new", "rename data", folder),
    ]
    done.clear()
    FencedFile(tmp_path / "data").read(5)
    assert done == []  # an equal fence costs nothing
