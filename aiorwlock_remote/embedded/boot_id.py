"""Which boot of this host it is, by which clock, and what another makes of a record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SELF = Path("/proc/self")
_NAMESPACES = "time", "time_for_children"
_NOT_TOLD = FileNotFoundError, NotADirectoryError, PermissionError
"""Neither now nor later: a system without /proc, or one that confines us."""


@dataclass(frozen=True, slots=True)
class BootId:
    """What the times in a store are of. Empty: not told.

    ``id`` changes with each boot of the host. ``shift``: how far its clocks are set off
    in a time namespace, which is the same for all who have the same clock.
    """

    id: str = ""
    shift: str = ""

    def joining(self, kept: BootId | None, path: str) -> BootId:
        """What the store has to keep once we use it; ``kept``: what it keeps so far.

        Raises:
            ConfigurationError: whoever uses it knows more than we, or another clock.
        """
        if kept is None or is_another_boot(kept.id, self.id):
            return self
        if kept.id and not self.id:
            raise ConfigurationError(
                what=f"{path} is used by processes that see {_BOOT_ID}, which is not "
                "there for this one",
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
    """That of this process.

    Raises:
        BackendUnavailable: the system tells, but not now.
    """
    try:
        return BootId(_boot_id(), _shift())
    except OSError as exc:
        raise BackendUnavailable(
            what=f"which boot of the host this is cannot be read ({exc})",
            nothing_done=True,
        ) from exc


def is_another_boot(written: str, boot: str) -> bool:
    """Whether it is certain; of what is not known nothing follows."""
    return bool(written and boot) and written != boot


def as_of_boot(record: Doorman, written: str, boot: str, now: int) -> Doorman:
    """The record, written in boot ``written``, as it counts in ``boot``.

    Where one of them is not told, a clock that began anew gives another boot away.
    """
    over = is_another_boot(written, boot)
    if not (written and boot):
        over = any(grant.since > now for grant in record.grants)
    return record.after_reboot() if over else record


@cache
def _boot_id() -> str:
    """Read once: later the process may be out of descriptors."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except _NOT_TOLD:
        return ""


def _shift() -> str:
    """Read each time: a forked child may live in another namespace."""
    try:
        own, of_children = ((_SELF / "ns" / name).readlink() for name in _NAMESPACES)
        if own != of_children:  # the offsets that are told are those of the latter
            return str(own)
        return " ".join((_SELF / "timens_offsets").read_text("ascii").split())
    except _NOT_TOLD:
        return ""
