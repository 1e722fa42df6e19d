"""What is left after a power cut: what was synced, and names as they were before."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from aiorwlock_remote.embedded import boot_id
from aiorwlock_remote.embedded.boot_id import BootId
from tests.backends.files.one_resource import ResourceClient

SEAT, RECORD = "order,42.lock", "order,42.doorman"


class Disk:
    """Notes what is on disk for certain: contents by inode, at each sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: dict[int, bytes] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._synced)

    def _synced(self, file: int) -> None:
        about = os.fstat(file)
        if stat.S_ISREG(about.st_mode):
            content = Path(f"/proc/self/fd/{file}").read_bytes()
            self.contents[about.st_ino] = content

    def after_power_cut(self, folder: Path, image: Path) -> None:
        """The names of now, with the contents that are certain."""
        image.mkdir()
        for path in folder.iterdir():
            about = path.stat()
            kept = image / path.name
            kept.write_bytes(self.contents.get(about.st_ino, b""))
            os.utime(kept, ns=(about.st_atime_ns, about.st_mtime_ns))
        for name in (".rwlock", ".changes"):  # which is made anew where it is empty
            shutil.copy(folder / name, image)


@pytest.mark.parametrize("seat", ["none", "first", "first, empty", "last, empty"])
@pytest.mark.parametrize("ends", ["held", "released"])
def test_fences_go_on_and_nobody_is_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seat: str, ends: str
) -> None:
    """Whichever of our seats the file system shows again, whole or without content."""
    folder, image = tmp_path / "locks", tmp_path / "image"
    folder.mkdir()
    disk = Disk(monkeypatch)
    client = ResourceClient(folder)
    client.take("first")
    shutil.copy2(folder / SEAT, tmp_path / "first")
    client.give("first")
    client.clock.by += 2
    fence = client.take("last")
    shutil.copy2(folder / SEAT, tmp_path / "last")
    if ends == "released":
        client.give("last")
    disk.after_power_cut(folder, image)
    (image / SEAT).unlink(missing_ok=True)
    if seat != "none":
        which, _, empty = seat.partition(", ")
        shutil.copy2(tmp_path / which, image / SEAT)
        at = (image / SEAT).stat().st_mtime_ns
        if empty:
            (image / SEAT).write_text("")
            os.utime(image / SEAT, ns=(at, at))
    monkeypatch.setattr(boot_id, "this_boot", lambda: BootId("another boot"))
    again = ResourceClient(image)
    again.clock.back = 86_400
    assert again.look().seat is None or not again.look().record.grants
    assert again.take("next") > fence
    assert (image / SEAT).read_text() == "next\n"


def test_without_sync_nothing_is_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: ``sync=no`` says so."""
    disk = Disk(monkeypatch)
    ResourceClient(tmp_path, sync=False).take("first")
    assert disk.contents == {}


def test_a_foreign_lock_outlives_a_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what it is there for; only ours are known to be dead."""
    client = ResourceClient(tmp_path)
    client.take("ours")
    client.give("ours")
    (tmp_path / SEAT).write_text("theirs\n")
    monkeypatch.setattr(boot_id, "this_boot", lambda: BootId("another boot"))
    again = ResourceClient(tmp_path)
    assert not again.take("next")
    seat = again.look().seat
    assert seat is not None
    assert seat.ticket == "theirs"


def test_another_boot_ends_grants_without_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held them is gone."""
    fence = ResourceClient(tmp_path).take("ours")
    monkeypatch.setattr(boot_id, "this_boot", lambda: BootId("another boot"))
    assert ResourceClient(tmp_path).take("next") > fence
