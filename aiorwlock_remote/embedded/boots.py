"""Which boot of this host it is, and what another one makes of a record."""

from __future__ import annotations

from pathlib import Path

from aiorwlock_remote.core.record import Record

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What changes with each boot of this host; empty where the host does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def of_this_boot(record: Record, written: str, boot: str, now: int) -> Record:
    """The record, written in boot ``written``, as it counts in ``boot``.

    Where the host tells no boot id, a clock that began anew gives another boot away.
    """
    ahead = not boot and any(grant.since > now for grant in record.grants)
    return record.after_reboot() if written != boot or ahead else record
