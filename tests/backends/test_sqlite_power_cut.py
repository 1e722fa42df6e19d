"""What a power cut leaves of SQLite's files: what was synced, and no more."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.embedded import boot_id
from tests.servers.preloading import preloading

DISK = Path(__file__).parents[1] / "servers" / "disk.c"

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


def fences(tmp_path: Path, ends: str, how: str, cycles: int = 5) -> list[int]:
    """Those that a process was given; the disk as it was then is at ``url``."""
    (tmp_path / "synced").mkdir()
    before = preloading(DISK, tmp_path, SYNCED_TO=str(tmp_path / "synced"))
    script = [sys.executable, "-m", "tests.backends.sqlite_cut"]
    real = f"sqlite:///{tmp_path}/locks.db"
    output = subprocess.run(
        [*before, *script, real, str(cycles), ends, how],
        stdout=subprocess.PIPE,
        check=False,
    )
    for copy in (tmp_path / "synced").iterdir():
        if not (tmp_path / copy.name).exists():  # a journal that was removed
            copy.unlink()
    numbers = [int(line) for line in output.stdout.split()]
    assert len(numbers) == cycles
    return numbers


def url(tmp_path: Path) -> str:
    """Of what a power cut left."""
    return f"sqlite:///{tmp_path}/synced/locks.db"


@pytest.fixture
def next_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has been started again, and does not know the time."""
    monkeypatch.setattr(boot_id, "_boot_id", lambda: "another")
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)


@pytest.mark.usefixtures("next_boot")
@pytest.mark.parametrize("how", ["well", "surprised"])
@pytest.mark.parametrize("ends", ["held", "released"])
async def test_fences_go_on_and_nobody_is_blocked(
    tmp_path: Path, ends: str, how: str
) -> None:
    given = fences(tmp_path, ends, how)
    async with connect(url(tmp_path)) as locks:
        held = await locks.mutex("order", 1).try_acquire()
        assert held is not None
        assert held.fence > max(given)
        await held.release()


@pytest.mark.usefixtures("next_boot")
async def test_without_a_sync_a_fence_comes_again(
    tmp_path: Path,
) -> None:
    given = fences(tmp_path, "held", "careless")
    async with connect(url(tmp_path)) as locks, locks.mutex("order", 1) as held:
        assert held.fence <= max(given)


async def test_a_release_is_not_synced(tmp_path: Path) -> None:
    """The same boot would take it for held; no other process sees such a disk."""
    fences(tmp_path, "released", "well")
    async with connect(url(tmp_path)) as locks:
        assert await locks.mutex("order", 1).try_acquire() is None
    async with connect(f"sqlite:///{tmp_path}/locks.db") as locks:
        held = await locks.mutex("order", 1).try_acquire()  # no power cut: it is there
        assert held is not None
        await held.release()


async def test_where_the_next_boot_would_not_know_all_is_synced(tmp_path: Path) -> None:
    fences(tmp_path, "released", "nowhere")
    async with connect(url(tmp_path)) as locks:
        held = await locks.mutex("order", 1).try_acquire()
        assert held is not None
        await held.release()
