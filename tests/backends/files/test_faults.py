"""Files that fail while locks are in them, and what is said of it."""

from __future__ import annotations

import fcntl
import resource as limits
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorwlock_remote import BackendError, BackendUnavailable, BadRecord
from tests.backends.files.one_resource import ResourceClient

ROOT = Path(__file__).parents[3]
STEP_DOWN = """
import os, sys, anyio
from aiorwlock_remote import LockError, connect

async def main(url):
    try:
        async with connect(url):
            print("opened")
    except LockError as exc:
        print(type(exc).__name__, exc)

anyio.run(main, sys.argv[1])  # imports everything while it may
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
anyio.run(main, sys.argv[1])
"""


def test_a_directory_that_is_not_writable() -> None:
    """For this user; root steps down first."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ResourceClient(place)
        place.chmod(0o555)
        try:
            said = subprocess.run(
                [sys.executable, "-c", STEP_DOWN, place.as_uri()],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()[-1]
        finally:
            place.chmod(0o755)
    assert said.startswith("Unsupported")
    assert "writable by this user" in said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of a megabyte, if we may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=1k", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        yield None
    else:
        yield place
        subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_full_disk(small_disk: Path | None, tmp_path: Path) -> None:
    """New names are refused with nothing done; what is there goes on."""
    place, how = small_disk or tmp_path / "small", "real" if small_disk else "pretended"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.backends.files.full", place, how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_files_that_must_not_grow(tmp_path: Path) -> None:
    """As full a disk as anybody can make."""
    client = ResourceClient(tmp_path)
    soft, hard = limits.getrlimit(limits.RLIMIT_FSIZE)
    limits.setrlimit(limits.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(BackendUnavailable, match="no space") as caught:
            client.take("ours")
    finally:
        limits.setrlimit(limits.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.nothing_done
    assert {path.name for path in tmp_path.iterdir()} == {
        ".rwlock",
        ".changes",
        ".boot",
    }
    assert client.take("ours")


def test_a_damaged_record_harms_no_other(tmp_path: Path) -> None:
    client = ResourceClient(tmp_path)
    for _ in range(2):
        client.take("ours")
        client.give("ours")
    record = tmp_path / "order,42.doorman"
    record.write_bytes(record.read_bytes().replace(b'"v"', b'"w"'))
    with pytest.raises(BadRecord, match="damaged"):
        client.take("ours")
    with pytest.raises(BadRecord, match="damaged"):
        client.look()
    assert client.scan() == []


def test_a_record_locked_by_a_stopped_process(tmp_path: Path) -> None:
    """The error says what it means; nothing was done."""
    client = ResourceClient(tmp_path)
    client.take("ours")
    client.patience = 0.0
    with (tmp_path / "order,42.doorman").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        client.connection.steps([], 0.0)
        with pytest.raises(BackendUnavailable, match="stopped") as caught:
            client.give("ours")
        assert caught.value.nothing_done
    client.give("ours")
    assert client.take("next")


def test_the_directory_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "locks"
    client = ResourceClient(place, create=True)
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    with pytest.raises(BackendError, match="does not exist any more"):
        client.take("ours")
