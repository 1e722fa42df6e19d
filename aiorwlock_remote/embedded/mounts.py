"""Finds the file system that a path is on, if the operating system shows it (Linux)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from aiorwlock_remote.errors import ConfigurationError, Unsupported

_TABLE = Path("/proc/self/mountinfo")
_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "gfs2"),
    *("glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "virtiofs"),
}
_NO_LOCKS = {"fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse"}
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock"}
_RECOVERS = Path("/sys/module/nfs/parameters/recover_lost_locks")


@dataclass(frozen=True, slots=True)
class Mount:
    """Value object: a mounted file system."""

    # Its type, as ``nfs4``; empty: unknown.
    kind: str = ""
    # The path at which it is mounted.
    place: str = ""
    # The options of the mount and of the file system.
    options: frozenset[str] = frozenset()

    @property
    def network(self) -> bool:
        """Whether this is a network file system, which other hosts may mount, too."""
        return self.kind in _NETWORK


def recovers_lost_locks() -> bool:
    """Return True if the NFS client keeps using files whose lock it has lost."""
    try:
        return _RECOVERS.read_text().strip() in {"Y", "1"}
    except OSError:
        return False


def mount_of(path: str) -> Mount:
    """Return the mount that ``path`` is on; an empty ``Mount`` if that is unknown."""
    try:
        table = _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return Mount()
    return find_mount(os.path.realpath(path), table)


def find_mount(path: str, table: str) -> Mount:
    """Return the mount that holds a path.

    ``path`` is absolute, without symbolic links; ``table`` is the text of
    ``mountinfo``.
    """
    best, found = -1, Mount()
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        fields, kind, *more = before.split(), *after.split()
        place = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        # Of several mounts at one place, the last hides the others.
        if inside and len(place) >= best:
            options = {*fields[5].split(","), *",".join(more[1:]).split(",")}
            best, found = len(place), Mount(kind, place, frozenset(options))
    return found


def check_mount(path: str, mount: Mount, *, shared: bool) -> None:
    """Raise an error if locks on the file system do not exclude other hosts.

    Raises ``ConfigurationError`` for a network file system unless ``shared`` (the URL
    has ``shared=yes``), and ``Unsupported`` for one whose locks are local to each host.
    """
    local = sorted(_LOCAL_LOCKS & mount.options)
    if mount.kind in _NO_LOCKS or (mount.network and local):
        why = ", ".join(local) or "it has none"
        raise Unsupported(
            what=f"{path}: the locks of this {mount.kind} reach no other host ({why})",
            hint="mount it with locks, or keep the directory elsewhere",
        )
    if mount.network and not shared:
        raise ConfigurationError(
            what=f"{path} is on a network file system ({mount.kind})",
            hint="say shared=yes in every program's URL: other hosts' clocks differ",
        )
