"""Notices to the holder of a resource that its record has a new queue entry."""

from __future__ import annotations

from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.value import replace

NOTIFIED_CLIENT_FIELD = "ear"
"""Field of the stored record: id of the client to notify of new queue entries."""
MAX_CLIENT_ID_LENGTH = 32


class ArrivalNotices:
    """Decides which client is notified when a queue entry is added to a held resource.

    A new queue entry is a new version, so a holder that knows only the older version
    would be refused when it releases, and others would wait for its second attempt. So
    a process that listens for notifications writes its client id into the record when
    it becomes the holder, and a process that adds a queue entry notifies that client.
    Notices are hints: a lost one costs time only.

    ``hears`` says whether this process listens; any thread may set it.
    """

    def __init__(self, client_id: str) -> None:
        self.hears: bool = False
        self._client_id = client_id

    def turned(self, record: Doorman, pushed_to: str | None = None) -> Doorman:
        """Return the record with its new holder as the client to notify, if it listens.

        Called when a step changes the mutex record. ``pushed_to``: the client that the
        step pushed a grant to, which listens; None: this one. The former holder's
        client id is always removed
        (test_arrivals.py: test_a_holder_that_cannot_be_notified_removes_the_last_one).
        """
        client_id = self._client_id if self.hears and record.grants else None
        if pushed_to is not None:
            client_id = pushed_to
        ours = () if client_id is None else ((NOTIFIED_CLIENT_FIELD, client_id),)
        if client_id is None and not record.extra:
            return record
        others = tuple(e for e in record.extra if e[0] != NOTIFIED_CLIENT_FIELD)
        return replace(record, extra=others + ours)

    def behind(self, record: Doorman) -> str | None:
        """Return the id of the client to notify when we join the queue, or None.

        ``record``: the doorman with our new queue entry.
        """
        other = dict(record.extra).get(NOTIFIED_CLIENT_FIELD)
        if not isinstance(other, str) or not other.isalnum() or not other.isascii():
            return None
        if len(other) > MAX_CLIENT_ID_LENGTH or other == self._client_id:
            return None
        return other


def is_new_entry_only(before: Doorman | None, after: Doorman) -> bool:
    """Return True if the resource is held and a step only added a queue entry."""
    if before is None or after.number == before.number:
        return False
    return bool(after.grants) and after.grants == before.grants
