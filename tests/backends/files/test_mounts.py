"""What a directory is on, and whether locks there reach whoever sees the same files."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, Unsupported, connect
from aiorwlock_remote.backends.files import store
from aiorwlock_remote.embedded import mounts

TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
90 22 0:50 / /mnt/my\\040nfs rw,relatime - nfs4 srv:/x rw,vers=4.2,local_lock=none
91 22 0:51 / /mnt/old rw - nfs srv:/y rw,vers=3,nolock,local_lock=all
92 22 0:52 / /mnt/ssh rw - fuse.sshfs host:/z rw,user_id=0
93 90 0:53 / /mnt/my\\040nfs/here rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/mnt/my nfs", "nfs4"),
        ("/mnt/my nfs/a", "nfs4"),
        ("/mnt/my nfs/here/a", "tmpfs"),
        ("/mnt/older", "ext4"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    assert mounts.find_mount(path, TABLE).kind == kind


def test_a_network_file_system_has_to_be_called_shared() -> None:
    nfs = mounts.find_mount("/mnt/my nfs", TABLE)
    with pytest.raises(ConfigurationError, match="shared=yes"):
        mounts.check_mount("/x", nfs, shared=False)
    mounts.check_mount("/x", nfs, shared=True)
    mounts.check_mount("/x", mounts.find_mount("/var", TABLE), shared=False)


@pytest.mark.parametrize(("setting", "rating"), [("Y\n", "bad"), ("N\n", None)])
def test_locks_that_are_lost_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, rating: str | None
) -> None:
    """As the command ``rwlock doctor`` tells."""
    parameter, place = tmp_path / "parameter", tmp_path / "locks"
    parameter.write_text(setting)
    monkeypatch.setattr(mounts, "_RECOVERS", parameter)
    monkeypatch.setattr(store, "mount_of", lambda _: mounts.Mount("nfs4"))

    async def examined() -> dict[str, str]:
        async with connect(f"{place.as_uri()}?shared=yes&create=yes") as locks:
            return {found.name: found.rating async for found in locks.examine()}

    assert anyio.run(examined).get("nfs.recover_lost_locks") == rating


@pytest.mark.parametrize("path", ["/mnt/old", "/mnt/ssh"])
def test_locks_that_reach_no_other_host(path: str) -> None:
    with pytest.raises(Unsupported, match="no other host"):
        mounts.check_mount("/x", mounts.find_mount(path, TABLE), shared=True)
