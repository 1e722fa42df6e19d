"""What changed from one look at a store to the next. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, final

from aiorwlock_remote import Doorman, Holder
from aiorwlock_remote.core.names import Resource

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
    now: Doorman | None = None
    holder: Holder | None = None
    error: str = ""


@final
class Changes:
    """Compares what is seen with what was seen before."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: dict[Resource, Doorman] | None = None
        self._at = 0.0
        self._longest: dict[tuple[Resource, str], float] = {}

    def since(self, found: Iterable[Doorman], at: float) -> list[Change]:
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
        self, before: Doorman | None, after: Doorman | None, passed: float
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

    def _ran_out(self, seen: Doorman, one: Holder, passed: float) -> bool:
        """Whether the lease of one that is gone was over, because nobody renewed it.

        Whoever is alive renews it at a third, so that it is never seen half over.
        """
        left = one.expires_in
        longest = self._longest.get((seen.target, one.holder))
        if left is None or longest is None:
            return False
        return left <= passed and left < longest / 2

    def _remember(self, now: dict[Resource, Doorman]) -> None:
        before, self._longest = self._longest, {}
        for target, seen in now.items():
            for one in seen.holders:
                if one.expires_in is not None:
                    key = target, one.holder
                    self._longest[key] = max(before.get(key, 0.0), one.expires_in)


def _at_first(seen: Doorman) -> Iterator[Change]:
    live = _live(seen)
    for one in seen.holders:
        yield Change("held" if one in live else "lost", seen, one)
    if seen.queue:
        yield Change("queue", seen)


def _live(seen: Doorman) -> list[Holder]:
    """Without those whose lease is over: they are on show until somebody asks."""
    return [one for one in seen.holders if one.expires_in is None or one.expires_in > 0]


def _grant(one: Holder) -> tuple[str, str, int | None]:
    return one.holder, one.mode, one.fence


def _line(seen: Doorman) -> list[tuple[str, int, str, int, str]]:
    """Who waits; not for how long."""
    return [(q.mode, q.waiting, q.host, q.pid, q.reason) for q in seen.queue]


def _without_anybody(seen: Doorman | None) -> Doorman:
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
