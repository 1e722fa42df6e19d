"""What ``rwlock watch`` knows of a store, and how changes are written.

This module has no clock and no I/O. All times are seconds, unless they are datetimes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from aiorwlock_remote import Holder, LockInfo
from aiorwlock_remote.cli.format import (
    fence_of,
    holder_json,
    lease_left,
    moment,
    resource_json,
    span,
    waiting,
    who,
)
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.locks.changes import Change, ChangeDetector

MAX_CHANGES = 16
"""Number of changes that are kept for the screen."""


class WatchState:
    """What a user sees of a store: the last scan, changes, and why scans fail.

    ``found``: resources of the last successful scan; ``as_of``: time of that scan;
    ``asked_at``: start of the scan under way, None if none is; ``trouble``: why scans
    fail now, or ""; ``log``: the last changes and their times.
    """

    def __init__(self) -> None:
        self.found: Sequence[LockInfo] = ()
        self.as_of: datetime | None = None
        self.asked_at: float | None = None
        self.trouble: str = ""
        self.trouble_since: datetime | None = None
        self.log: deque[tuple[datetime, Change]] = deque(maxlen=MAX_CHANGES)
        self._changes = ChangeDetector()
        self._changed_at: dict[Resource, float] = {}

    def asked(self, at: float) -> None:
        self.asked_at = at

    def answered(
        self, found: Sequence[LockInfo], at: float, when: datetime
    ) -> list[Change]:
        """Record the result of a scan; return what changed since the scan before.

        ``at`` (monotonic seconds) and ``when`` (time of day) are the same moment.
        """
        back = [] if self.as_of and not self.trouble else [Change("watching")]
        changes = self._changes.since(found, at)
        # What is there at the first scan did not change now, and does not stand out.
        if self.as_of is not None:
            self._changed_at |= {c.now.target: at for c in changes if c.now is not None}
            shown = {seen.target for seen in found}
            for target in self._changed_at.keys() - shown:
                del self._changed_at[target]
            self._log(back + changes, when)
        self.found, self.as_of, self.asked_at = found, when, None
        self.trouble, self.trouble_since = "", None
        return back + changes

    def failed(self, error: str, when: datetime) -> list[Change]:
        """Record a failed scan; return a change unless the scan before failed, too."""
        self.asked_at = None
        first, self.trouble = not self.trouble, error
        if not first:
            return []
        self.trouble_since = when
        new = [Change("unavailable", error=error)]
        self._log(new, when)
        return new

    def changed_since(self, seen: LockInfo, at: float) -> bool:
        return self._changed_at.get(seen.target, at) > at

    def _log(self, new: list[Change], when: datetime) -> None:
        self.log.extend((when, change) for change in new)


class WatchOutput:
    """Base of the outputs of ``rwlock watch``; this class itself shows nothing."""

    def check(self) -> None:
        """Raise ``BrokenPipeError`` if the reader of the output has left."""

    async def write(self, changes: Sequence[Change], when: datetime) -> None:
        """Write the changes as lines, if this output consists of lines."""

    def paint(self) -> None:
        """Draw the current state, if this output is a screen."""

    def leave(self) -> None:
        """Restore the terminal: Ctrl-Z is about to stop this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


CHANGE_KEYS = """\b
--json gives a line for each change, with the keys:
  time        of this machine; a change is seen when the store is scanned
  change      what happened:
                watching     the store answers: at first, or again
                held         was held when the watch began
                granted      a new holder, or a holder's new mode
                ended        a grant is gone: released, or broken
                lost         its lease ran out
                free         it is not held any more
                queue        other tasks wait for it than before
                unavailable  the store does not answer
  resource    "TYPE/ID"; null if it is about the store
  holder      the holder that changed, as last seen, as in "holders" below;
              null for free, queue and the store
  now         the resource afterwards; else null
  error       why the store is unavailable; else null
"""


def as_json(change: Change, when: datetime) -> str:
    """Return a change as one line of JSON, with the keys of ``CHANGE_KEYS``."""
    now, holder = change.now, change.holder
    return json.dumps(
        {
            "time": moment(when),
            "change": change.kind,
            "resource": None if now is None else now.target.label,
            "holder": None if holder is None else holder_json(holder),
            "now": None if now is None else resource_json(now),
            "error": change.error or None,
        }
    )


def as_line(change: Change, when: datetime) -> str:
    """Return a change as one line of text that begins with its time."""
    return f"{moment(when)}  {in_words(change)}"


def in_words(change: Change) -> str:
    """Return a change as one line of text, without its time."""
    about = "" if change.now is None else change.now.target.label
    parts = (f"{change.kind:<11}", about, _detail(change))
    return "  ".join(part for part in parts if part).rstrip()


def _detail(change: Change) -> str:
    if change.kind == "queue" and change.now is not None:
        return f"waiting: {waiting(change.now.queue) or 'nobody'}"
    if change.holder is None:
        return change.error
    one = change.holder
    grant = f"{one.mode} {one.holder}", f"fence {fence_of(one)}"
    return ", ".join(part for part in (*grant, *_times(change, one), who(one)) if part)


def _times(change: Change, one: Holder) -> tuple[str, ...]:
    lease = f"lease {lease_left(one)}"
    over = one.expires_in is not None and one.expires_in <= 0
    match change.kind:
        case "held":
            return f"for {span(one.age)}", lease
        case "granted":
            return (lease,)
        case "lost":
            return f"after {span(one.age)}", lease if over else "its lease ran out"
        case _:
            return (f"after {span(one.age)}",)
