"""Listings of a store's resources, and what changed from one to the next.

This module has no clock. All times are seconds, unless they are datetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal, Self

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.info import Holder, LockInfo

Kind = Literal[
    "watching", "held", "granted", "ended", "lost", "free", "queue", "unavailable"
]


class StoreScanner:
    """Lists a store's resources again and again, over a ``Locks``."""

    def __init__(
        self,
        source: Connecting | Locks | Callable[[], Locks],
        resource_type: str | None = None,
    ) -> None:
        """Prepare to list.

        Args:
            source: ``connect(…)``, to be opened by the first scan and closed by
                ``aclose``; or an open ``Locks``, or what returns one, to be left open.
            resource_type: List the resources of this type; None: all.
        """
        self._source = source
        self._type = resource_type
        self._opened: Locks | None = None

    async def open(self) -> Locks:
        """Return the ``Locks``, opened if need be."""
        source = self._source
        if isinstance(source, Connecting):
            if self._opened is None:
                self._opened = await source
            return self._opened
        return source if isinstance(source, Locks) else source()

    async def scan(self) -> list[LockInfo]:
        """Return the resources held or waited for; raise ``LockError`` or OSError."""
        locks = await self.open()
        async with aclosing(locks.list(self._type)) as listed:
            found = [seen async for seen in listed]
        return sorted(found, key=lambda seen: seen.target.label)

    async def force_release(self, seen: LockInfo, reason: str) -> int:
        """End the grants of the holders in ``seen``; return how many were ended."""
        if isinstance(self._source, Connecting) and self._opened is None:
            raise BackendUnavailable(what="no connection to the store")
        locks = await self.open()
        return await locks.force_release(seen, reason=reason)

    async def aclose(self) -> None:
        """Close what was opened here; the next scan opens a new connection."""
        locks, self._opened = self._opened, None
        if locks is not None:
            await locks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


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


def pause(took: float, every: float) -> float:
    """Return the seconds to wait after a scan that took ``took`` seconds.

    Scans begin ``every`` s apart, but the pause is never shorter than the last scan.
    """
    return max(every - took, took)
