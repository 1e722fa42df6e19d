"""SQLite whose log is removed under a process, and a file seen at two paths.

A process that closes a file loses its locks on it (POSIX), whichever of its code it was
that had opened it. Then the next one that closes the file takes itself for the last.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, connect
from aiorwlock_remote.backends.sqlite import sqlite_file
from aiorwlock_remote.embedded.mounts import Mount, mount_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
# ruff: noqa: ASYNC240 - looking at a temporary folder blocks nobody

VISIT = """
import sys, anyio
from aiorwlock_remote import connect

async def main():
    async with connect(sys.argv[1]) as locks:
        held = await locks.mutex("order", 1).try_acquire()
        print("free" if held else "held")

anyio.run(main)
"""


def visit(url: str) -> str:
    """What another process finds, which comes and goes."""
    return subprocess.run(
        [sys.executable, "-c", VISIT, url], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.slow
async def test_a_database_without_its_log_grants_nothing(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite:///{path}"
    async with connect(url) as locks:
        lock = locks.mutex("order", 1)
        async with lock:
            assert visit(url) == "held"
        path.read_bytes()
        assert visit(url) == "free"
        assert not path.with_name("locks.db-wal").exists()
        with pytest.raises(BackendUnavailable, match="lost its lock on the file"):
            await lock.acquire(timeout=1)
        with pytest.raises(BackendUnavailable, match="lost its lock on the file"):
            await lock.info()
    async with connect(url) as locks, locks.mutex("order", 1):
        assert visit(url) == "held"


@pytest.mark.parametrize("part", ["-wal", "-shm"])
async def test_a_database_without_a_companion_file_grants_nothing(
    tmp_path: Path, part: str
) -> None:
    """A clean-up job deletes it: another process would be granted the same locks."""
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}") as locks:
        held = await locks.mutex("order", 1, on_lost="flag").acquire()
        path.with_name(f"locks.db{part}").unlink()
        for lock in (locks.mutex("order", 2), locks.mutex("order", 3)):
            with pytest.raises(BackendUnavailable, match="was removed"):
                await lock.try_acquire()
        with pytest.raises(BackendUnavailable, match="was removed"):
            await held.extend()
        held.detach()


async def test_the_file_alone_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``docker run -v /srv/locks.db:/app/locks.db`` does."""
    path = tmp_path.resolve() / "locks.db"
    real = mount_of(str(path))
    assert real.place
    alone = Mount(real.kind, str(path), real.options)
    monkeypatch.setattr(sqlite_file, "mount_of", lambda _: alone)
    with pytest.raises(ConfigurationError, match="mount the directory, never the file"):
        await connect(f"sqlite:///{path}")
    assert not path.exists()
