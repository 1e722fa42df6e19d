"""Nobody's grants end because a process cannot tell which boot of the host it is."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError, LockError, connect
from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from tests.embedded.descriptors import no_descriptors

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"sqlite": f"sqlite:///{tmp_path}/l.db", "file": tmp_path.as_uri()}
    return urls[request.param]


def live_in(patch: pytest.MonkeyPatch, boot: BootId) -> None:
    """From now on, for what is opened."""
    patch.setattr(boot_id, "this_boot", lambda: boot)


def as_before(path: Path) -> None:
    """A store as older versions left it: it does not say of which boot it is."""
    (path / ".boot").unlink(missing_ok=True)
    if (path / "l.db").exists():
        with sqlite3.connect(path / "l.db") as db:
            db.execute("DROP TABLE IF EXISTS boots")
        db.close()


@pytest.mark.parametrize("ours", [BootId("this"), BootId()])
@pytest.mark.parametrize("theirs", [BootId("this"), BootId()])
async def test_with_one_unknown_boot_id_nobody_is_refused(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours: BootId,
    theirs: BootId,
) -> None:
    """Among them one of an older version, which refuses nobody."""
    live_in(monkeypatch, theirs)
    async with connect(url) as locks, locks.mutex("order", 42) as held:
        as_before(tmp_path)
        live_in(monkeypatch, ours)
        async with connect(url) as others:
            assert await others.mutex("order", 42).try_acquire() is None
        held.check()


async def test_a_process_without_boot_id_is_refused_by_those_with_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(url) as locks, locks.mutex("order", 42) as held:
        live_in(monkeypatch, BootId())
        with pytest.raises(ConfigurationError, match="/proc"):
            await connect(url)
        held.check()


async def test_another_time_namespace(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock differs by any amount: nobody there would be excluded."""
    live_in(monkeypatch, BootId("this", "boottime 0 0"))
    async with connect(url) as locks, locks.mutex("order", 42):
        live_in(monkeypatch, BootId("this", "boottime 9 0"))
        with pytest.raises(ConfigurationError, match="time namespace"):
            await connect(url)
    live_in(monkeypatch, BootId("next", "boottime 9 0"))
    async with connect(url) as locks, locks.mutex("order", 42):
        pass


async def test_another_boot(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it ends what nobody holds any more."""
    live_in(monkeypatch, BootId("this"))
    locks = await connect(url, lease=None)
    before = await locks.mutex("order", 42).acquire()
    live_in(monkeypatch, BootId("next"))
    async with connect(url) as after, after.mutex("order", 42) as held:
        assert held.fence > before.fence
    with pytest.raises(LockError):
        await before.release()
    await locks.aclose()


async def test_opening_while_the_boot_cannot_be_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> BootId:
        raise BackendUnavailable(what="no")

    async with connect(url) as locks, locks.mutex("order", 42) as held:
        with monkeypatch.context() as patch:
            patch.setattr(boot_id, "this_boot", failing)
            with pytest.raises(BackendUnavailable):
                await connect(url)
        held.check()


async def test_the_keeper_opens_while_there_are_no_descriptors(url: str) -> None:
    """The first renewal fails; the next one is in time, and nothing was ended."""
    async with connect(url, lease=3.0) as locks, locks.mutex("order", 42) as held:
        with no_descriptors():
            await anyio.sleep(1.3)
        await anyio.sleep(2.2)
        held.check()


async def test_the_boot_file_of_a_directory(tmp_path: Path) -> None:
    """Blank after a power cut, it says nothing; anything else is not to be guessed."""
    url, path = tmp_path.as_uri(), tmp_path / ".boot"
    for left in (b"", b"\0" * 512):
        path.write_bytes(left)
        async with connect(url):
            assert json.loads(path.read_text())["boot"] == boot_id.this_boot().id
    path.write_text("Tuesday")
    with pytest.raises(LockError, match="remove it"):
        await connect(url)
