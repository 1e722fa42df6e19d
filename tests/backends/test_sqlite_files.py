"""Files that cannot be used: said with what to do, and left as they are."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
    connect,
    registry,
)
from aiorwlock_remote.backends.sqlite.store import SqliteConnection
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.embedded.descriptors import no_descriptors

pytestmark = pytest.mark.anyio
# ruff: noqa: ASYNC240 - looking at a temporary folder blocks nobody

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


async def refused(url: str, error: type[LockError]) -> str:
    """The message of what opening this store raises."""
    patience = 0.2 if error is BackendUnavailable else 10.0
    with pytest.raises(error) as caught:
        await connect(url, connect_timeout=patience)
    return str(caught.value)


async def test_another_applications_database(tmp_path: Path) -> None:
    """Not touched, though it is a fine SQLite file."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id)")
    db.close()
    before = path.read_bytes()
    said = await refused(f"sqlite:///{path}", ConfigurationError)
    assert "file of their own" in said
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


async def test_not_a_database(tmp_path: Path) -> None:
    """A text file stays a text file."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    said = await refused(f"sqlite:///{path}", BadRecord)
    assert "file of their own" in said
    assert path.read_text() == "not a database\n" * 100


async def test_no_such_folder(tmp_path: Path) -> None:
    """No folder is made on the way."""
    said = await refused(f"sqlite:///{tmp_path}/none/locks.db", ConfigurationError)
    assert "folder must exist" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
async def test_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """That passes; nothing is wrong with the file."""
    path = tmp_path / "locks.db"
    if exists:
        await _open_and_close(path)
    boot = boot_id.this_boot()
    monkeypatch.setattr(boot_id, "this_boot", lambda: boot)
    connection = SqliteConnection(str(path), SystemClock())
    with no_descriptors(), pytest.raises(BackendUnavailable, match="descriptors"):
        connection.open(1.0)
    connection.open(1.0)
    connection.close()


@pytest.mark.parametrize("name", ["folder", "folder/locks.db/x", "x" * 600, "loop"])
async def test_no_place_for_a_file(tmp_path: Path, name: str) -> None:
    """That does not pass."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/locks.db").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    said = await refused(f"sqlite:///{tmp_path}/{name}", ConfigurationError)
    assert "cannot be opened" in said


def test_a_file_that_is_not_writable() -> None:
    """A file that this user may read but not write; root steps down first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "locks.db")
        anyio.run(_open_and_close, path)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        try:
            said = subprocess.run(
                [sys.executable, "-c", STEP_DOWN, f"sqlite:///{path}"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()[-1]
        finally:
            Path(folder).chmod(0o755)
    assert "writable by this user" in said


async def _open_and_close(path: Path) -> None:
    async with connect(f"sqlite:///{path}"):
        pass


async def test_locked_by_another_program(tmp_path: Path) -> None:
    """The error comes after ``connect_timeout``."""
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}"):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        await refused(f"sqlite:///{path}", BackendUnavailable)
    finally:
        other.close()


def _busy() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


class BusyOnce(sqlite3.Connection):
    """Finds the file locked at the first try of each statement of no transaction.

    As where another process creates the log at that moment, or removes it.
    """

    refused: ClassVar[list[str]] = []

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:  # noqa: ANN401
        if not self.in_transaction and sql not in self.refused:
            self.refused.append(sql)
            raise _busy()
        return super().execute(sql, values)


@pytest.mark.parametrize("exists", [False, True])
def test_locked_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exists: bool
) -> None:
    """Whatever is asked is asked again."""
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    if exists:
        connection.open(10.0)
        connection.close()
    monkeypatch.setattr(BusyOnce, "refused", [])
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=BusyOnce))
    connection.open(10.0)
    connection.look(Resource("a", "1"))
    connection.scan({})
    connection.version()
    connection.forget(1.0)
    connection.close()
    asked = " ".join(BusyOnce.refused)
    words = ("application_id", "WAL", "name", "boots", "doormans", "data_version")
    assert [word for word in words if word not in asked] == (
        [] if exists else ["boots"]
    )
    assert "BEGIN IMMEDIATE" in asked


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite://h/x.db"])
async def test_urls_without_a_file(url: str) -> None:
    """With a word on what to write instead."""
    assert "sqlite:///relative.db" in await refused(url, ConfigurationError)


async def test_driver_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it is named."""
    target = "no_such_driver_module:open_store"
    monkeypatch.setitem(registry._BUILT_IN, "marvel", target)
    said = await refused("marvel://host", ConfigurationError)
    assert "pip install 'aiorwlock-remote[marvel]'" in said


async def test_unknown_scheme_and_option(tmp_path: Path) -> None:
    """What is known is named."""
    assert "sqlite" in await refused("gopher://host", ConfigurationError)
    url = f"sqlite:///{tmp_path}/locks.db?speed=warp"
    assert "speed" in await refused(url, ConfigurationError)
    assert list(tmp_path.iterdir()) == []


BACK_UP = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db, sqlite3.connect(sys.argv[2]) as copy:
    db.backup(copy)
"""


async def test_the_log_belongs_to_the_file(tmp_path: Path) -> None:
    """A copy of the file alone lacks what was committed last; a backup has it."""
    place, alone, backup = (tmp_path / name for name in ("l.db", "alone.db", "b.db"))
    async with connect(f"sqlite:///{place}") as locks, locks.mutex("order", 42):
        # By other processes: a close in this one would end its locks on the file.
        back_up = [sys.executable, "-c", BACK_UP, str(place), str(backup)]
        for command in (["cp", str(place), str(alone)], back_up):
            subprocess.run(command, check=True)  # noqa: ASYNC221 - nothing else happens
    for path, seats in ((alone, 0), (backup, 1)):
        async with connect(f"sqlite:///{path}") as locks:
            assert len([info async for info in locks.list()]) == seats


async def test_the_log_has_the_permissions_of_the_file(tmp_path: Path) -> None:
    """Whatever the umask is: who may use the one may use all three."""
    place = tmp_path / "locks.db"
    place.touch()
    place.chmod(0o660)
    before = os.umask(0o077)
    try:
        async with connect(f"sqlite:///{place}") as locks, locks.mutex("order", 42):
            beside = (place, tmp_path / "locks.db-wal", tmp_path / "locks.db-shm")
            assert [path.stat().st_mode & 0o777 for path in beside] == [0o660] * 3
    finally:
        os.umask(before)
    assert [path.name for path in tmp_path.iterdir()] == ["locks.db"]
