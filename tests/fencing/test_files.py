"""A fenced file: several processes, killed ones, links, modes, what was spoilt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiorwlock_remote import BadRecord, StaleFence, WouldDeadlock
from aiorwlock_remote.fencing.files import FencedFile
from tests.fencing.file_holders import free
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


def test_a_file_left_by_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".data.new").write_bytes(b"longer than what comes")
    file = FencedFile(tmp_path / "data")
    file.write(5, b"short")
    assert file.read(5) == b"short"


def test_a_file_that_cannot_be_renamed_does_not_stay(tmp_path: Path) -> None:
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


def test_the_holder_of_a_fenced_file_reads_and_writes(tmp_path: Path) -> None:
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


def test_on_the_disk_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence and its folder come before the data, the data before its name."""
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(file: int) -> None:
        name = Path(f"/proc/self/fd/{file}").readlink().name
        if name.endswith(".new"):
            assert os.fstat(file).st_size, "what is still in a buffer is not synced"
        done.append(f"sync {name}")
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
