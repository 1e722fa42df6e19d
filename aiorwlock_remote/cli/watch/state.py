"""What ``rwlock watch`` knows of a store, and what changed from one scan to the next.

This module has no clock and no I/O. All times are seconds, unless they are datetimes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Self

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

Kind = Literal[
    "watching", "held", "granted", "ended", "lost", "free", "queue", "unavailable"
]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that changed between two scans, or was there at the first scan.

    ``now``: the resource after the change; ``holder``: the holder that changed, as last
    seen; ``error``: why the store is unavailable.
    """

    kind: Kind
    now: LockInfo | None = None
    holder: Holder | None = None
    error: str = ""


class ChangeDetector:
    """Finds what changed between the successive scans of a store."""

    def __init__(self) -> None:
        self._seen: dict[Resource, LockInfo] | None = None
        self._at = 0.0
        # The longest rest of its lease that each holder was seen with.
        self._longest: dict[tuple[Resource, str], float] = {}

    def since(self, found: Iterable[LockInfo], at: float) -> list[Change]:
        """Return what differs from the previous call's scan; the first time, all.

        ``found``: the resources of this scan; ``at``: its time, in monotonic seconds.
        """
        now = {seen.target: seen for seen in found}
        changes: list[Change] = []
        if self._seen is None:
            for seen in now.values():
                changes += _at_first(seen)
        else:
            targets = now.keys() | self._seen.keys()
            for target in sorted(targets, key=lambda target: target.label):
                changes += self._between(
                    self._seen.get(target), now.get(target), at - self._at
                )
        self._seen, self._at = now, at
        self._keep_longest(now)
        return changes

    def _between(
        self, before: LockInfo | None, after: LockInfo | None, passed: float
    ) -> Iterator[Change]:
        before = before or _unused(after)
        after = after or _unused(before)
        was, now = _live(before), _live(after)
        still = {one.holder for one in now}
        shown = {one.holder: one for one in after.holders}
        for one in was:
            if one.holder in still:
                continue
            # Still listed, but not live: its lease ran out and was not noticed yet.
            over = one.holder in shown or self._ran_out(before, one, passed)
            kind: Kind = "lost" if over else "ended"
            yield Change(kind, after, shown.get(one.holder, one))
        if was and not now:
            yield Change("free", after)
        known = {_grant(one) for one in was}
        for one in now:
            if _grant(one) not in known:
                yield Change("granted", after, one)
        if _waiters(before) != _waiters(after):
            yield Change("queue", after)

    def _ran_out(self, seen: LockInfo, one: Holder, passed: float) -> bool:
        # A process that is alive renews a lease after a third of it, so that the lease
        # is never seen more than half over.
        left = one.expires_in
        longest = self._longest.get((seen.target, one.holder))
        # A grant without a lease cannot run out; it was released or broken.
        if left is None or longest is None:
            return False
        return left <= passed and left < longest / 2

    def _keep_longest(self, now: dict[Resource, LockInfo]) -> None:
        before, self._longest = self._longest, {}
        for target, seen in now.items():
            for one in seen.holders:
                if one.expires_in is not None:
                    key = target, one.holder
                    self._longest[key] = max(before.get(key, 0.0), one.expires_in)


def _at_first(seen: LockInfo) -> Iterator[Change]:
    live = _live(seen)
    for one in seen.holders:
        yield Change("held" if one in live else "lost", seen, one)
    if seen.queue:
        yield Change("queue", seen)


def _live(seen: LockInfo) -> list[Holder]:
    # Holders whose leases have run out are listed until that is noticed.
    return [one for one in seen.holders if one.expires_in is None or one.expires_in > 0]


# With mode and fence: an upgrade, or a new grant of the same task, is a change.
def _grant(one: Holder) -> tuple[str, str, int | None]:
    return one.holder, one.mode, one.fence


def _waiters(seen: LockInfo) -> list[tuple[str, int, str, int, str]]:
    # Without how long each has waited, which changes all the time.
    return [(q.mode, q.waiting, q.host, q.pid, q.reason) for q in seen.queue]


def _unused(seen: LockInfo | None) -> LockInfo:
    assert seen is not None
    return replace(
        seen,
        holders=(),
        queue=(),
        active_readers={},
        has_pending_writer=False,
        pending_writer=None,
        updated_at=None,
    )


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
