"""Calls that could not be sent yet, in order, and how long they may wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from aiorwlock_remote.backends.redis.connection.calls import Call
from aiorwlock_remote.backends.redis.errors import not_sent

MAX_QUEUED_SECONDS = 30.0


class OfflineQueue:
    """A queue of calls. Whoever awaits one has ``patience`` seconds.

    One that must go stays for ``MAX_QUEUED_SECONDS`` seconds all the same. Both count
    from when it was first put aside, here or elsewhere. ``where``: the server, for
    messages.
    """

    def __init__(self, where: str, patience: float) -> None:
        """Empty."""
        self._where = where
        self._patience = patience
        self._calls: deque[Call[Any]] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def must_go(self) -> bool:
        """Whether any of them must go."""
        return any(call.must_go for call in self._calls)

    def put(self, call: Call[Any], now: float) -> None:
        """At the end."""
        call.since = call.since or now
        self._calls.append(call)

    def put_back(self, calls: Sequence[Call[Any]], now: float) -> None:
        """In front: they were handed over before all that is here."""
        for call in calls:
            call.since = call.since or now
        self._calls.extendleft(reversed(calls))

    def take(self) -> Iterable[Call[Any]]:
        """All of them, in order; none is left."""
        calls, self._calls = self._calls, deque()
        return calls

    def take_first(self) -> Call[Any] | None:
        """The first one, if there is any."""
        return self._calls.popleft() if self._calls else None

    def fail_late(self, now: float, why: str) -> None:
        """Tell those whose time of patience is over, each once."""
        late: list[Call[Any]] = []
        for call in self.take():
            waited = now - call.since
            if waited >= self._patience and not call.done():
                late.append(call)
            if waited < (MAX_QUEUED_SECONDS if call.must_go else self._patience):
                self._calls.append(call)
        for call in late:  # whoever is told may hand over others
            call.failed(not_sent(self._where, why, for_good=not call.must_go))

    def fail_all(self, why: str) -> None:
        """Tell all; none is left."""
        for call in self.take():
            call.failed(not_sent(self._where, why))
