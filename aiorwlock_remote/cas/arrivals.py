"""Who holds a resource is told that somebody queued up behind it.

A new place is a new version: a holder that knows only its own would be refused when it
leaves, and ask again while somebody waits for that. So a process that can be told
leaves its gate in the record (``ear``, a field of ours beside the core's) as it enters,
and whoever takes a place behind it tells it. It is a hint, as all messages are.
"""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.value import replace

EAR = "ear"
MAX_CLIENT_ID = 32
"""Characters of a gate; anything else in its place is nobody."""


class ArrivalNotices:
    """Of one process. ``hears``: whether it can be told; from any thread."""

    def __init__(self, gate: str) -> None:
        """It cannot yet."""
        self.hears: bool = False
        self._gate = gate

    def turned(self, record: Doorman) -> Doorman:
        """The record as the seat changes hands: with our ear, or with nobody's."""
        ours = ((EAR, self._gate),) if self.hears and record.grants else ()
        if not ours and not record.extra:
            return record
        others = tuple(entry for entry in record.extra if entry[0] != EAR)
        return replace(record, extra=others + ours)

    def behind(self, record: Doorman) -> str | None:
        """Who is to be told of a new place, if it is not ourselves."""
        ear = dict(record.extra).get(EAR)
        if not isinstance(ear, str) or not ear.isalnum() or not ear.isascii():
            return None
        return ear if ear != self._gate and len(ear) <= MAX_CLIENT_ID else None


def is_new_entry_only(before: Doorman | None, after: Doorman) -> bool:
    """Whether all that changed is that somebody waits for those who are in."""
    if before is None or after.number == before.number:
        return False
    return bool(after.grants) and after.grants == before.grants
