"""Identifies the boot, and the clock, in which times in a local store are counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SELF = Path("/proc/self")
_NAMESPACES = "time", "time_for_children"
_NEVER_READABLE = FileNotFoundError, NotADirectoryError, PermissionError
"""Errors that stay: a system without /proc, or one that confines this process."""


@dataclass(frozen=True, slots=True)
class BootId:
    """Value object: identifies the boot clock of a host. An empty field is unknown."""

    # Changes with each boot of the host.
    id: str = ""
    # The clocks' offsets in a time namespace, equal for all processes with one clock.
    shift: str = ""

    def joining(self, kept: BootId | None, path: str) -> BootId:
        """Return the boot id that the store at ``path`` must keep from now on.

        ``self`` is this process's boot, ``kept`` the one in the store (None: none yet).
        Raises ``ConfigurationError`` if the store's processes have another clock than
        this one, or if they can read their boot id and this process cannot.
        """
        if kept is None or is_another_boot(kept.id, self.id):
            return self
        if kept.id and not self.id:
            raise ConfigurationError(
                what=f"{path} is used by processes that see {_BOOT_ID}, which does not "
                "exist for this process",
                hint="boots could not be told apart: let all of them see /proc; to go "
                "on without it, stop them all and remove the locks",
            )
        if kept.shift and self.shift and kept.shift != self.shift:
            raise ConfigurationError(
                what=f"{path} is used by processes in another time namespace",
                hint="its clock differs, so leases would mean nothing: let all run in "
                "one, or stop them all and remove the locks",
            )
        return kept


def this_boot() -> BootId:
    """Return the id of the host's current boot and of the clock that this process has.

    Raises ``BackendUnavailable`` if the boot id cannot be read at the moment.
    """
    try:
        return BootId(_boot_id(), _shift())
    except OSError as exc:
        raise BackendUnavailable(
            what=f"the boot id of the host cannot be read ({exc})", nothing_done=True
        ) from exc


def is_another_boot(written: str, boot: str) -> bool:
    """Return True if both boot ids are known (not empty), and differ."""
    return bool(written and boot) and written != boot


def as_of_boot(record: Doorman, written: str, boot: str, now: int) -> Doorman:
    """Return the record as it is valid in ``boot`` at ``now`` (boot clock, µs).

    ``written`` is the id of the boot in which the record was written. If that is an
    earlier boot, the grants and queue entries have ended, and the result has none.
    """
    over = is_another_boot(written, boot)
    if not (written and boot):
        # The boots are unknown, but the clock began anew: no grant lies in its future.
        over = any(grant.since > now for grant in record.grants)
    return record.after_reboot() if over else record


@cache
def _boot_id() -> str:
    # Read once: later the process may be out of descriptors (test_boot_id.py:
    # test_an_id_that_cannot_be_read_is_not_one_that_is_not_there).
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except _NEVER_READABLE:
        return ""


def _shift() -> str:
    # Read each time: a forked child may live in another namespace.
    try:
        own, of_children = ((_SELF / "ns" / name).readlink() for name in _NAMESPACES)
        if own != of_children:
            # ``timens_offsets`` shows the offsets of the children's namespace
            # (test_boot_id.py: test_the_shift_of_a_time_namespace).
            return str(own)
        return " ".join((_SELF / "timens_offsets").read_text("ascii").split())
    except _NEVER_READABLE:
        return ""
