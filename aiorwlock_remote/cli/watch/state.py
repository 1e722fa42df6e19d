"""What is known of a store while it is watched. Seconds; no clock, no I/O.

What changed from one look at a store to the next. No clock, no I/O.

A change in words, and as JSON.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal, final

from aiorwlock_remote import Holder, LockInfo
from aiorwlock_remote.cli.format import (
    fence_of,
    holder_json,
    lease_left,
    moment,
    resource_json,
    resource_of,
    span,
    waiting,
    who,
)
from aiorwlock_remote.core.names import Resource

if TYPE_CHECKING:
    from datetime import datetime

    from aiorwlock_remote import Holder


Kind = Literal[
    "watching", "held", "granted", "ended", "lost", "free", "queue", "unavailable"
]


@final
@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened between two looks, or was there at the first.

    ``now``: the resource afterwards. ``holder``: whom it is about, as last seen.
    ``error``: why the store is unavailable.
    """

    kind: Kind
    now: LockInfo | None = None
    holder: Holder | None = None
    error: str = ""


@final
class ChangeDetector:
    """Compares what is seen with what was seen before."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[Resource, LockInfo] | None = None
        self._at = 0.0
        self._longest: dict[tuple[Resource, str], float] = {}

    def since(self, found: Iterable[LockInfo], at: float) -> list[Change]:
        """What is different now; at first, what is there. ``at``: seconds."""
        now = {seen.target: seen for seen in found}
        told: list[Change] = []
        if self._seen is None:
            for seen in now.values():
                told += _at_first(seen)
        else:
            for target in sorted(now.keys() | self._seen.keys(), key=_label):
                told += self._between(
                    self._seen.get(target), now.get(target), at - self._at
                )
        self._seen, self._at = now, at
        self._remember(now)
        return told

    def _between(
        self, before: LockInfo | None, after: LockInfo | None, passed: float
    ) -> Iterator[Change]:
        before = before or _without_anybody(after)
        after = after or _without_anybody(before)
        was, now = _live(before), _live(after)
        still = {one.holder for one in now}
        shown = {one.holder: one for one in after.holders}
        for one in was:
            if one.holder in still:
                continue
            over = one.holder in shown or self._ran_out(before, one, passed)
            kind: Kind = "lost" if over else "ended"
            yield Change(kind, after, shown.get(one.holder, one))
        if was and not now:
            yield Change("free", after)
        known = {_grant(one) for one in was}
        for one in now:
            if _grant(one) not in known:
                yield Change("granted", after, one)
        if _line(before) != _line(after):
            yield Change("queue", after)

    def _ran_out(self, seen: LockInfo, one: Holder, passed: float) -> bool:
        """Whether the lease of one that is gone was over, because nobody renewed it.

        Whoever is alive renews it at a third, so that it is never seen half over.
        """
        left = one.expires_in
        longest = self._longest.get((seen.target, one.holder))
        if left is None or longest is None:
            return False
        return left <= passed and left < longest / 2

    def _remember(self, now: dict[Resource, LockInfo]) -> None:
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
    """Without those whose lease is over: they are on show until somebody asks."""
    return [one for one in seen.holders if one.expires_in is None or one.expires_in > 0]


def _grant(one: Holder) -> tuple[str, str, int | None]:
    return one.holder, one.mode, one.fence


def _line(seen: LockInfo) -> list[tuple[str, int, str, int, str]]:
    """Who waits; not for how long."""
    return [(q.mode, q.waiting, q.host, q.pid, q.reason) for q in seen.queue]


def _without_anybody(seen: LockInfo | None) -> LockInfo:
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


def _label(target: Resource) -> str:
    return target.label


MAX_CHANGES = 16
"""Changes that are remembered."""


@final
class WatchState:
    """What was found last, what changed lately, and whether the store answers."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.found: Sequence[LockInfo] = ()
        self.as_of: datetime | None = None
        self.asked_at: float | None = None
        self.trouble: str = ""
        self.trouble_since: datetime | None = None
        self.log: deque[tuple[datetime, Change]] = deque(maxlen=MAX_CHANGES)
        self._changes = ChangeDetector()
        self._changed_at: dict[Resource, float] = {}

    def asks(self, at: float) -> None:
        """The store is being asked."""
        self.asked_at = at

    def answered(
        self, found: Sequence[LockInfo], at: float, when: datetime
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

    def changed_since(self, seen: LockInfo, at: float) -> bool:
        """Whether anything happened to it since then."""
        return self._changed_at.get(seen.target, at) > at

    def _remember(self, new: list[Change], when: datetime) -> None:
        self.log.extend((when, change) for change in new)


CHANGE_KEYS = """\b
--json gives a line for each change, with the keys:
  time        of this machine; a change is seen when the store is asked
  change      what happened:
                watching     the store answers: at first, or again
                held         was held when the watch began
                granted      somebody got it, or holds it in another mode now
                ended        a grant is gone: released, or broken
                lost         its lease ran out
                free         nobody holds it any more
                queue        who waits for it is different now
                unavailable  the store does not answer
  resource    "TYPE/ID"; null if it is about the store
  holder      whom it is about, as last seen, as in "holders" below; null for
              free, queue and the store
  now         the resource afterwards; else null
  error       why the store is unavailable; else null
"""


def as_json(change: Change, when: datetime) -> str:
    """The keys of ``CHANGE_KEYS``, on one line."""
    now, holder = change.now, change.holder
    return json.dumps(
        {
            "time": moment(when),
            "change": change.kind,
            "resource": None if now is None else resource_of(now),
            "holder": None if holder is None else holder_json(holder),
            "now": None if now is None else resource_json(now),
            "error": change.error or None,
        }
    )


def as_line(change: Change, when: datetime) -> str:
    """For people who read a file."""
    return f"{moment(when)}  {in_words(change)}"


def in_words(change: Change) -> str:
    """Without the time."""
    about = "" if change.now is None else resource_of(change.now)
    parts = (f"{change.kind:<11}", about, _detail(change))
    return "  ".join(part for part in parts if part).rstrip()


def _detail(change: Change) -> str:
    if change.kind == "queue" and change.now is not None:
        return f"waiting: {waiting(change.now.queue) or 'nobody'}"
    if change.holder is None:
        return change.error
    one = change.holder
    known = (*_grant_words(one), *_time(change, one), who(one))
    return ", ".join(part for part in known if part)


def _grant_words(one: Holder) -> tuple[str, str]:
    return f"{one.mode} {one.holder}", f"fence {fence_of(one)}"


def _time(change: Change, one: Holder) -> tuple[str, ...]:
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
