"""What the live page shows of a store: rows, time lines, and messages to its viewers.

This module has no clock and no I/O. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import plain
from aiorwlock_remote.locks.changes import Change, ChangeDetector
from aiorwlock_remote.locks.info import Holder, LockInfo, Queued, left_behind

RECENT_SECONDS = 120.0
"""Seconds for which a resource stays on the page after it became free."""
MAX_FREE_ROWS = 2000
MAX_SPANS_PER_ROW, MAX_SPANS = 200, 20_000
"""Ended grants and waits that the time lines keep: of one resource, and of all."""
KEY_BYTES = 16
MAX_LOG, MAX_GAPS, MAX_TOMBSTONES = 100, 50, 5000
TOLERANCE = 0.5
"""Seconds by which the end of a lease may differ between scans that saw no renewal: the
store computes it from two clocks.
"""

Json = dict[str, Any]
GrantKey = tuple[str, str, str | None]


@dataclass(slots=True)
class Row:
    """One resource on the page.

    ``key``: names the row in messages; ``seq``: the last scan that changed the row;
    ``renewed_seq``: the last scan that changed the ends of its leases only; ``spans``:
    its ended grants and waits, the oldest first, each with the scan that saw it end.
    """

    key: str
    info: LockInfo
    view: Json
    seq: int
    renewed_seq: int = 0
    freed_at: float | None = None
    # A list: an empty deque takes 600 bytes, and there may be 50,000 rows.
    spans: list[tuple[int, Json]] = field(default_factory=list[tuple[int, Json]])


class BoardModel:
    """The rows of the page, and what changed with each scan.

    Invariants (test_model.py):

    - A viewer that applies the messages since any earlier ``seq`` sees what a viewer
      sees that is given all (test_viewers_see_the_same_whenever_they_come).
    - Memory is bounded by the number of resources that are held or waited for, and by
      the constants above (test_history_is_bounded).
    - No ticket and no published mutex record is in a message (test_no_secret_is_shown).
    - A resource has one key in the boards of all processes, which no other one has
      (test_keys_are_the_same_in_every_process).
    """

    def __init__(self) -> None:
        self.seq: int = 0
        self.trouble: str = ""
        self._trouble_since: float | None = None
        self._as_of: float | None = None
        # Before the first scan no browser looked either.
        self._paused_since: float | None = 0.0
        self._seen_at = self._latest_end = 0.0
        self._rows: dict[Resource, Row] = {}
        self._by_key: dict[str, Row] = {}
        self._changes = ChangeDetector()
        self._log: deque[tuple[int, Json]] = deque(maxlen=MAX_LOG)
        self._gaps: deque[tuple[float, float]] = deque(maxlen=MAX_GAPS)
        self._gaps_seq = 0
        # Rows that left the page: (seq, key). Who is further behind gets all rows.
        self._gone: deque[tuple[int, str]] = deque()
        self._forgotten_seq = 0
        # The ended spans of all rows, the oldest first, for MAX_SPANS.
        self._ended: deque[tuple[Row, tuple[int, Json]]] = deque()

    # ------------------------------------------------------------------ scans

    def paused(self) -> None:
        """Note that no scan follows for now: the time lines have a gap from here on."""
        if self._paused_since is None:
            self._paused_since = self._as_of

    def failed(self, error: str, at: float) -> None:
        """Record a scan that failed at ``at``."""
        self.seq += 1
        self.paused()
        if not self.trouble:
            self._trouble_since = at
            self._note("unavailable", at, error=error)
        self.trouble = error

    def answered(self, found: Sequence[LockInfo], at: float) -> None:
        """Record the result of a scan whose reply came at ``at``."""
        self.seq += 1
        first = self._as_of is None
        if self.trouble:
            self._note("watching", at)
        # What ended in a gap, or between two scans, was seen last before that.
        self._seen_at = at if self._as_of is None else self._as_of
        self._latest_end = at
        if self._paused_since is not None:
            self._gaps.append((self._paused_since, at))
            self._gaps_seq = self.seq
            self._latest_end = self._paused_since
        self.trouble, self._trouble_since, self._paused_since = "", None, None
        self._as_of = at
        changes = self._changes.since(found, at)
        lost = {
            (change.now.target, change.holder.holder)
            for change in changes
            if change.kind == "lost" and change.now and change.holder
        }
        seen: set[Resource] = set()
        for info in found:
            seen.add(info.target)
            self._update(info, at, lost)
        for target in self._rows.keys() - seen:
            self._free(self._rows[target], at, lost)
        self._forget(at)
        # What is there at the first scan did not change then.
        if not first:
            for change in changes[-MAX_LOG:]:
                self._note_change(change, at)

    def _update(
        self, info: LockInfo, at: float, lost: set[tuple[Resource, str]]
    ) -> None:
        row = self._rows.get(info.target)
        if row is None:
            key = row_key(info.target)
            row = Row(key, info, _view(key, info, at, {}), self.seq)
            self._rows[info.target] = self._by_key[key] = row
            return
        if row.freed_at is None and _same_grants(row.info, info):
            self._renew(row, info, at)
            return
        view = _view(row.key, info, at, row.view)
        self._end_spans(row, view, lost)
        before, row.view, row.info, row.freed_at = row.view, view, info, None
        if view != before:
            if _without_ends(view) == _without_ends(before):
                row.renewed_seq = self.seq
            else:
                row.seq = self.seq

    def _renew(self, row: Row, info: LockInfo, at: float) -> None:
        # Most of 10,000 rows do not change from one scan to the next.
        for grant, one in zip(row.view["holders"], info.holders, strict=True):
            if one.expires_in is not None:
                ends = _steady(grant["ends"], _rounded(at + one.expires_in))
                if ends != grant["ends"]:
                    grant["ends"], row.renewed_seq = ends, self.seq
        row.info = info

    def _free(self, row: Row, at: float, lost: set[tuple[Resource, str]]) -> None:
        if row.freed_at is not None:
            return
        empty: Json = {"holders": [], "queue": [], "freed": _rounded(at)}
        view = row.view | empty
        self._end_spans(row, view, lost)
        row.view, row.freed_at, row.seq = view, at, self.seq

    def _end_spans(
        self, row: Row, after: Json, lost: set[tuple[Resource, str]]
    ) -> None:
        known = {_key(one) for one in row.view["holders"]}
        still = {_key(one) for one in after["holders"]}
        new = sorted(
            (one["since"], one["mode"])
            for one in after["holders"]
            if _key(one) not in known
        )
        ended = [one for one in row.view["holders"] if _key(one) not in still]
        for count, one in enumerate(ended):
            end = self._end_of(one, new, count)
            over = (row.info.target, one["holder"]) in lost
            self._add_span(row, one | {"to": _rounded(end), "lost": over})
        waits = dict(_numbered(after["queue"]))
        for key, one in _numbered(row.view["queue"]):
            if key not in waits or waits[key]["since"] > one["since"]:
                end = max(self._latest_end, one["since"])
                self._add_span(row, one | {"to": _rounded(end), "wait": True})

    def _end_of(self, one: Json, new: list[tuple[float, str]], count: int) -> float:
        # A grant that excluded it shows the end of the one before more exactly than the
        # scan: the store's time of that grant.
        since: float = one["since"]
        end = self._latest_end
        followers = [begin for begin, mode in new if {mode, one["mode"]} != {"read"}]
        if one["mode"] == "permit":  # one for each that ended
            followers = followers[count : count + 1]
        if followers and self._seen_at <= followers[0] < end:
            end = followers[0]
        return max(end, since)

    def _add_span(self, row: Row, grant_or_wait: Json) -> None:
        shown = {key: one for key, one in grant_or_wait.items() if key in _SPAN_KEYS}
        span = self.seq, shown
        row.spans.append(span)
        self._ended.append((row, span))
        if len(row.spans) > MAX_SPANS_PER_ROW:
            del row.spans[0]
        if len(self._ended) > MAX_SPANS:
            oldest, ended = self._ended.popleft()
            # A span beyond MAX_SPANS_PER_ROW has left its row already.
            if oldest.spans and oldest.spans[0] is ended:
                del oldest.spans[0]

    def _forget(self, at: float) -> None:
        free = [row for row in self._rows.values() if row.freed_at is not None]
        free.sort(key=lambda row: row.freed_at or 0.0)
        extra = len(free) - MAX_FREE_ROWS
        for count, row in enumerate(free):
            if count < extra or at - (row.freed_at or 0.0) >= RECENT_SECONDS:
                del self._rows[row.info.target], self._by_key[row.key]
                self._gone.append((self.seq, row.key))
        while len(self._gone) > MAX_TOMBSTONES:
            self._forgotten_seq, _ = self._gone.popleft()

    # -------------------------------------------------------------- the log

    def _note(self, kind: str, at: float, **more: object) -> None:
        self._log.append((self.seq, {"kind": kind, "at": _rounded(at), **more}))

    def _note_change(self, change: Change, at: float) -> None:
        assert change.now is not None
        more: Json = {"name": plain(change.now.target.label)}
        if change.kind == "queue":
            count: Counter[str] = Counter()
            for queued in change.now.queue:
                count[queued.mode] += queued.waiting
            more["waiting"] = dict(count)
        if change.holder is not None:
            more["mode"], more["who"] = change.holder.mode, _who(change.holder)
            more["age"] = round(change.holder.age, 2)
            more["why"] = plain(change.holder.reason)
        self._note(change.kind, at, **more)

    # ------------------------------------------------------------- messages

    def follows(self, since: int) -> bool:
        """Return whether what changed after the scan ``since`` is known."""
        return self._forgotten_seq < since <= self.seq

    def message(self, since: int, at: float) -> Json:
        """Return what a viewer needs that knows the state of the scan ``since``.

        If the viewer is too far behind, or knows nothing (0), the message is "full".
        ``at``: the present time.
        """
        full = not self.follows(since)
        known = -1 if full else since
        message: Json = {
            "seq": self.seq,
            "full": full,
            "now": _rounded(at),
            "asOf": self._as_of if self._as_of is None else _rounded(self._as_of),
            "trouble": plain(self.trouble),
            "troubleSince": self._trouble_since,
            "rows": [
                _with_ended(row, known)
                for row in self._rows.values()
                if row.seq > known
            ],
        }
        if self._gaps_seq > known:
            message["gaps"] = [
                [_rounded(begin), _rounded(end)] for begin, end in self._gaps
            ]
        if not full:
            message["renewed"] = [
                [row.key, [one["ends"] for one in row.view["holders"]]]
                for row in self._rows.values()
                if row.renewed_seq > known >= row.seq
            ]
            # To be applied before the rows: a resource may have come back since.
            message["gone"] = [key for seq, key in self._gone if seq > known]
        message["log"] = [entry for seq, entry in self._log if seq > known]
        return message

    def encoded(self, since: int, at: float) -> bytes:
        """Return ``message`` as compact JSON.

        Each row is encoded by itself: ``json`` splits a value into all of its parts
        first, which for 50,000 rows are a hundred megabytes.
        """
        message = self.message(since, at)
        rows = b",".join(encode(row) for row in message.pop("rows"))
        return b'%s,"rows":[%s]}' % (encode(message)[:-1], rows)

    def seen(self, key: str, holder: str, fence: str | None) -> LockInfo | None:
        """Return the resource with this holder only; None if the page has none such."""
        row = self._by_key.get(key)
        if row is None or row.freed_at is not None:
            return None
        one = tuple(
            one
            for one in row.info.holders
            if (one.holder, _fence(one)) == (holder, fence)
        )
        return replace(row.info, holders=one) if one else None


def row_key(target: Resource) -> str:
    """Return the name of a resource in messages: the same in every process.

    A digest, because names have up to 400 bytes, and differ in kind as well.
    """
    name = f"{target.kind}\0{target.type}\0{target.id}"
    digest = sha256(name.encode(errors="surrogatepass")).digest()[:KEY_BYTES]
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def encode(value: Mapping[str, object]) -> bytes:
    """Return a value as JSON in one line, without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


# ----------------------------------------------------------------- a resource as JSON


_SPAN_KEYS = frozenset(
    ("mode", "tasks", "since", "ends", "who", "why", "left", "to", "lost", "wait")
)
"""What a time line shows of a grant or wait that ended."""


def _with_ended(row: Row, known: int) -> Json:
    ended = [span for seq, span in row.spans if seq > known]
    return row.view | {"ended": ended} if ended else row.view


def _view(key: str, info: LockInfo, at: float, before: Json) -> Json:
    known = {_key(one): one for one in before.get("holders", ())}
    left = {one.holder for one in left_behind(info)}
    view: Json = {
        "row": key,
        "name": plain(info.target.label),
        "type": plain(info.resource_type),
        "fence": str(info.fence) if info.fence else "",
        "holders": [_grant(one, at, one.holder in left, known) for one in info.holders],
        "queue": [],
    }
    if info.semaphore:
        view["limit"] = info.limit or 0
    if info.clock_set_back:
        view["setBack"] = round(info.clock_set_back, 2)
    waited = dict(_numbered(before.get("queue", ())))
    queue = [_wait(queued, at) for queued in info.queue]
    for place, one in _numbered(queue):
        if place in waited:
            one["since"] = _steady(waited[place]["since"], one["since"])
    view["queue"] = queue
    return view


def _grant(one: Holder, at: float, left: bool, known: Mapping[GrantKey, Json]) -> Json:  # noqa: FBT001
    grant: Json = {
        "holder": one.holder,
        "mode": one.mode,
        "fence": _fence(one),
        "since": _rounded(at - one.age),
        "ends": None if one.expires_in is None else _rounded(at + one.expires_in),
        "who": _who(one),
        "task": plain(one.task),
        "why": plain(one.reason),
    }
    if one.foreign:
        grant["foreign"] = True
    if left:
        grant["left"] = True
    same = known.get(_key(grant))
    if same is not None:
        grant["since"] = same["since"]
        if grant["ends"] is not None and same["ends"] is not None:
            grant["ends"] = _steady(same["ends"], grant["ends"])
    return grant


def _wait(one: Queued, at: float) -> Json:
    return {
        "mode": one.mode,
        "tasks": one.waiting,
        "since": _rounded(at - one.age),
        "who": _who(one),
        "why": plain(one.reason),
    }


def _who(one: Holder | Queued) -> str:
    if one.host:
        return plain(f"{one.host}/{one.pid}")
    return "a foreign program" if getattr(one, "foreign", False) else ""


def _fence(one: Holder) -> str | None:
    # Fences have up to 19 digits, of which a number of a browser keeps 15.
    return None if one.fence is None else str(one.fence)


def _key(grant: Json) -> GrantKey:
    return grant["holder"], grant["mode"], grant["fence"]


def _numbered(queue: Sequence[Json]) -> Iterator[tuple[tuple[object, ...], Json]]:
    # A process waits once in a mode, for all of its tasks; the reason is that of the
    # first of them. One process may have several clients.
    count: Counter[tuple[object, ...]] = Counter()
    for one in queue:
        key = one["mode"], one["who"]
        yield (*key, count[key]), one
        count[key] += 1


def _same_grants(before: LockInfo, after: LockInfo) -> bool:
    # Whether nothing changed that a row shows, but for ends of leases.
    if before.queue or after.queue or len(before.holders) != len(after.holders):
        return False
    if (before.fence, before.clock_set_back) != (after.fence, after.clock_set_back):
        return False
    return all(
        (was.holder, was.mode, was.fence, _is_over(was))
        == (one.holder, one.mode, one.fence, _is_over(one))
        for was, one in zip(before.holders, after.holders, strict=True)
    )


def _is_over(one: Holder) -> bool | None:
    return None if one.expires_in is None else one.expires_in <= 0


def _without_ends(view: Json) -> Json:
    return view | {"holders": [one | {"ends": None} for one in view["holders"]]}


def _steady(before: float, now: float) -> float:
    return before if abs(now - before) < TOLERANCE else now


def _rounded(seconds: float) -> float:
    return round(seconds, 2)
