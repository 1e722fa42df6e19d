"""Who holds a resource reads what stands there when somebody has queued up behind it.

So its release starts from that and is not refused, see ``ears.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.names import Resource


class ArrivalReader:
    """Reads one resource once at a time, however many come. Lives in the loop."""

    def __init__(
        self,
        read: Callable[[Resource], Pending[StoredState]],
        known: Callable[[Resource], StoredState | None],
        saw: Callable[[Resource, StoredState], object],
    ) -> None:
        """``known``: what was seen last. ``saw``: told of what was read."""
        self._read = read
        self._known = known
        self._saw = saw
        self._told: dict[Resource, str] = {}  # the last, while a read is under way

    def came(self, resource: Resource, version: str) -> None:
        """There is a new place, and so that version."""
        known = self._known(resource)
        if known is None or known.seat is None or known.mark.version == version:
            return  # we have left, or know
        under_way = resource in self._told
        self._told[resource] = version
        if not under_way:
            self._read(resource).add_done_callback(
                partial(self._looked, resource, version)
            )

    def _looked(
        self, resource: Resource, version: str, read: Pending[StoredState]
    ) -> None:
        last = self._told.pop(resource)
        if read.error is None:  # else the release will tell
            self._saw(resource, read.result())
            if last != version:
                self.came(resource, last)
