"""Objects occupied in a folder: what lies there, who is dead, what may be wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

from aiorwlock_remote import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    LockBusy,
    LockTimeout,
    Unsupported,
)
from aiorwlock_remote.core.occupancy import ContenderRecord, ExpiryAges
from aiorwlock_remote.recipes import Occupancy, folder_occupancy
from aiorwlock_remote.recipes.folder_occupancy import FolderOccupancyStore
from tests.recipes.occupied_places import BOOK, NAME

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("nothing here depends on what runs the loop"),
]


async def test_what_lies_there(tmp_path: Path) -> None:
    books = folder_occupancy.occupancy(tmp_path)
    async with books.occupy(BOOK, who="../Zoë, \n."):
        (file,) = (tmp_path / NAME / "using").iterdir()
        label, process, nonce = file.name.split(",")
        assert label == "%2E./Zo%C3%AB%2C %3F.".replace("/", "%2F")
        assert process == folder_occupancy.own_process_proof()
        assert len(nonce) == 32
        assert file.stat().st_size == 0
        assert await books.holders(BOOK) == ("../Zoë, ?.",)
    async with books.occupy(("..", "../../etc/passwd"), who="é" * 100):
        assert set(names(tmp_path)) == {NAME, "..:..%2F..%2Fetc%2Fpasswd"}
    async with books.occupy(("k", "x" * 198)), books.occupy(("k", "/" * 198)):
        assert max(map(len, names(tmp_path))) <= 200


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def sweep(folder: Path) -> None:
    """As a cron job may."""
    subprocess.run(
        ["find", folder, "-mindepth", "1", "-type", "d", "-empty", "-delete"],
        check=True,
    )


async def test_empty_folders_may_be_swept_away(tmp_path: Path) -> None:
    books = folder_occupancy.occupancy(tmp_path)
    store = books.store
    assert await books.holders(BOOK) == ()
    for _ in range(2):
        async with books.occupy(BOOK):
            pass
        sweep(tmp_path)
        assert names(tmp_path) == []
    me = store.sign("me")
    await store.write(NAME, me)
    (tmp_path / NAME / "using").rmdir()
    assert await store.usings(NAME, me) == []
    assert await store.promote(NAME, me)
    assert await store.remove(NAME, me)


async def test_of_a_long_name_the_beginning_is_shown(tmp_path: Path) -> None:
    """As much as a file's name holds; no letter is cut in two."""
    store = folder_occupancy.occupancy(tmp_path).store
    shown, _, _ = store.sign("first" + "ä" * 200).split(",")
    assert shown == "first" + quote("ä") * 15


async def test_what_is_no_record(tmp_path: Path) -> None:
    for part in ("pending", "using"):
        (tmp_path / NAME / part / "folder").mkdir(parents=True)
        (tmp_path / NAME / part / ".nfs0001").touch()
    async with folder_occupancy.occupancy(tmp_path).occupy(BOOK):
        pass


async def test_the_age_is_by_the_file_servers_clock(tmp_path: Path) -> None:
    """Whatever our own says: what counts is the file that was made just now."""
    books = folder_occupancy.occupancy(tmp_path, using_age=60)
    using = tmp_path / NAME / "using"
    using.mkdir(parents=True)
    for age, busy in ((-3600, True), (59, True), (61, False)):
        (using / "joe").touch()
        at = time.time() - age
        os.utime(using / "joe", (at, at))
        if busy:
            with pytest.raises(LockBusy):
                await books.occupy(BOOK)
        else:
            async with books.occupy(BOOK):
                assert not (using / "joe").exists()


@pytest.mark.parametrize(("age", "extended"), [(50, True), (61, False)])
async def test_what_is_too_old_is_not_extended(
    tmp_path: Path, age: int, extended: bool
) -> None:
    """By the file server's clock: another may be about to delete it."""
    store = folder_occupancy.occupancy(tmp_path, using_age=60).store
    me = store.sign("me")
    await store.write(NAME, me)
    assert await store.promote(NAME, me)
    file = tmp_path / NAME / "using" / me
    at = time.time() - age
    os.utime(file, (at, at))
    assert await store.extend(NAME, me) == extended
    assert file.exists() == extended


async def test_only_proof_is_proof(tmp_path: Path) -> None:
    books = folder_occupancy.occupancy(tmp_path, using_age=None)
    using = tmp_path / NAME / "using"
    using.mkdir(parents=True)
    world, pid, start = folder_occupancy.own_process_proof().split(".")
    dead = f"{world}.{_dead_process()}.{start}"
    reused = f"{world}.{pid}.{int(start) - 1}"
    alive = folder_occupancy.own_process_proof()
    elsewhere = f"{'0' * 16}.{pid}.{start}"
    for process in (alive, elsewhere, "", "x", f"{world}.x.1", f"{world}.{pid}."):
        path = using / f"joe,{process},{'0' * 32}"
        path.touch()
        assert await books.try_occupy(BOOK) is None, process
        path.unlink()
    for process in (dead, reused):
        (using / f"joe,{process},{'0' * 32}").touch()
        async with books.occupy(BOOK):
            pass


def _dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_who_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "from aiorwlock_remote.recipes.folder_occupancy import own_process_proof; "
        "print(own_process_proof())"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}; import sys; sys.stdout.flush(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert name.count(".") == 2
    assert not folder_occupancy.is_proved_dead(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert folder_occupancy.is_proved_dead(name), (
        "nobody has asked how it ended, and it has"
    )
    child.communicate()
    assert folder_occupancy.is_proved_dead(name)
    monkeypatch.setattr(folder_occupancy, "_PROC", tmp_path)  # not Linux
    assert not folder_occupancy.is_proved_dead(name)
    folder_occupancy._process_proof.cache_clear()
    assert folder_occupancy.own_process_proof() == ""
    folder_occupancy._process_proof.cache_clear()


class Cached(FolderOccupancyStore):
    """A mount whose first look at the usings is an old one."""

    async def usings(self, thing: str, who: str) -> Sequence[ContenderRecord]:
        changed = (self._root / thing / "using" / who).exists()
        return await super().usings(thing, who) if changed else []


async def test_an_old_look_is_found_out(tmp_path: Path) -> None:
    ours = Occupancy(Cached(tmp_path, ExpiryAges()))
    async with folder_occupancy.occupancy(tmp_path).occupy(BOOK, who="joe"):
        with pytest.raises(LockTimeout) as late:
            await ours.occupy(BOOK, timeout=0.2)
        assert late.value.holders == ("joe",)
    async with ours.occupy(BOOK):
        pass


async def test_a_move_whose_answer_was_lost_is_found(tmp_path: Path) -> None:
    """NFS repeats a request; the second is answered with "no such file"."""
    store = folder_occupancy.occupancy(tmp_path).store
    me = store.sign("me")
    await store.write(NAME, me)
    await store.write(NAME, me)
    assert await store.promote(NAME, me)
    assert await store.promote(NAME, me)


async def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    books = folder_occupancy.occupancy(gone)
    for call in (books.try_occupy, books.holders):
        with pytest.raises(BackendUnavailable, match=f"mkdir -p {gone}"):
            await call(BOOK)
    assert not gone.exists(), "it may be a mount that is not there"
    gone.touch()
    for call in (books.try_occupy, books.holders):
        with pytest.raises(Unsupported) as caught:
            await call(BOOK)
        assert caught.value.what.startswith(f"{gone}/")
    with pytest.raises(Unsupported):
        await folder_occupancy.occupancy("/sys").occupy(BOOK)
    name: Any
    for name in ("", "a\0b", "\ud800", None, b"x", 5):
        with pytest.raises(ConfigurationError):
            folder_occupancy.occupancy(name)
    with pytest.raises(ConfigurationError):
        folder_occupancy.occupancy(tmp_path, using_age=0)


def test_without_a_namespace_nothing_tells_processes_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another container may have a process of the same number."""
    proof = folder_occupancy._process_proof.__wrapped__
    assert proof(os.getpid())
    monkeypatch.setattr(folder_occupancy, "_process_namespace", str)
    assert proof(os.getpid()) == ""


async def test_a_mount_that_is_away_for_a_while(tmp_path: Path) -> None:
    """Nothing is lost by that, and what could not be given back can be later."""
    root, away = tmp_path / "books", tmp_path / "away"
    root.mkdir()
    books = folder_occupancy.occupancy(root, using_age=None)
    occupied = await books.occupy(BOOK)
    root.rename(away)
    for call in (occupied.extend, occupied.release):
        with pytest.raises(BackendUnavailable, match="mkdir -p"):
            await call()
    occupied.__del__()  # its loss was raised: no warning
    away.rename(root)
    await occupied.extend()
    assert await occupied.release()
    assert not await occupied.release()
    assert await books.holders(BOOK) == ()


def test_errors_of_the_system(tmp_path: Path) -> None:
    store = FolderOccupancyStore(tmp_path, ExpiryAges())
    kinds = {
        errno.ENOSPC: BackendError,
        errno.EROFS: Unsupported,
        errno.EACCES: Unsupported,
        errno.ESTALE: BackendUnavailable,
        errno.EIO: BackendUnavailable,
    }
    for number, kind in kinds.items():
        error = store._error(OSError(number, os.strerror(number), "/x"))
        assert type(error) is kind
        assert os.strerror(number) in str(error)


async def test_threads_of_others_are_not_needed(tmp_path: Path) -> None:
    """Who fills all threads with calls that wait for us waits for ever."""
    books = folder_occupancy.occupancy(tmp_path)
    free = anyio.to_thread.current_default_thread_limiter()
    tokens = [object() for _ in range(int(free.total_tokens))]
    for token in tokens:
        free.acquire_on_behalf_of_nowait(token)
    with anyio.fail_after(30):
        async with books.occupy(BOOK):
            pass
    for token in tokens:
        free.release_on_behalf_of(token)


@pytest.mark.parametrize("part", ["using", "pending"])
async def test_a_record_whose_name_is_no_text(tmp_path: Path, part: str) -> None:
    """Of a shell script, in letters of its own: it counts as any, and ends as any."""
    books = folder_occupancy.occupancy(tmp_path, using_age=600)
    record = tmp_path / NAME / part / os.fsdecode(b"\xe9t\xe9")
    record.parent.mkdir(parents=True)
    record.touch()
    if part == "using":
        assert await books.holders(BOOK) == ("�t�",)
        assert await books.try_occupy(BOOK) is None
    os.utime(record, (1, 1))
    async with books.occupy(BOOK):
        pass
    assert not record.exists()
