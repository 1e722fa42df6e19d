"""What is known of a store while it is watched. Seconds; no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import final

from aiorwlock_remote import Doorman
from aiorwlock_remote.cli.watch.changes import Change, Changes
from aiorwlock_remote.core.names import Resource

LOG = 16
"""Changes that are remembered."""


@final
class View:
    """What was found last, what changed lately, and whether the store answers."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.found: Sequence[Doorman] = ()
        self.as_of: datetime | None = None
        self.asked_at: float | None = None
        self.trouble: str = ""
        self.trouble_since: datetime | None = None
        self.log: deque[tuple[datetime, Change]] = deque(maxlen=LOG)
        self._changes = Changes()
        self._changed_at: dict[Resource, float] = {}

    def asks(self, at: float) -> None:
        """The store is being asked."""
        self.asked_at = at

    def answered(
        self, found: Sequence[Doorman], at: float, when: datetime
    ) -> list[Change]:
        """The store answered; what to tell. ``at`` and ``when``: the same moment."""
        back = [] if self.as_of and not self.trouble else [Change("watching")]
        changes = self._changes.since(found, at)
        if self.as_of is not None:  # else it was there before, and is no news
            self._changed_at |= {c.now.target: at for c in changes if c.now is not None}
            shown = {seen.target for seen in found}
            for target in self._changed_at.keys() - shown:
                del self._changed_at[target]
            self._remember(back + changes, when)
        self.found, self.as_of, self.asked_at = found, when, None
        self.trouble, self.trouble_since = "", None
        return back + changes

    def failed(self, error: str, when: datetime) -> list[Change]:
        """The store did not answer; what to tell, once until it does."""
        self.asked_at = None
        first, self.trouble = not self.trouble, error
        if not first:
            return []
        self.trouble_since = when
        new = [Change("unavailable", error=error)]
        self._remember(new, when)
        return new

    def changed_since(self, seen: Doorman, at: float) -> bool:
        """Whether anything happened to it since then."""
        return self._changed_at.get(seen.target, at) > at

    def _remember(self, new: list[Change], when: datetime) -> None:
        self.log.extend((when, change) for change in new)
