"""The keeper's renewals: its own steps, in its own thread, over the same session."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue

from aiorwlock_remote.backends.cassandra.cas import newer
from aiorwlock_remote.backends.cassandra.steps import Steps
from aiorwlock_remote.core.commands import NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Clock, Renewal
from aiorwlock_remote.swapping import State

Call = Callable[[], object]


class ThreadHost:
    """A thread that waits for answers as a host: no event loop is needed."""

    def __init__(self, clock: Clock) -> None:
        """For whichever thread calls ``run``."""
        self.clock: Clock = clock
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = count()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in that thread; from any."""
        self._calls.put(partial(function, *args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """There are no tasks here."""
        raise NotImplementedError

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run it after so many seconds."""
        due = self.clock.now() + seconds
        heapq.heappush(self._timers, (due, next(self._order), function))

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Run what there is to be run, until it is done or the time has come."""
        while not done():
            now = self.clock.now()
            if now >= until:
                return
            if self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
                continue
            nearest = min(until, self._timers[0][0]) if self._timers else until
            try:
                call = self._calls.get(timeout=nearest - now)
            except Empty:
                continue
            call()


class CassandraRenewer:
    """One transaction a resource, all at once."""

    def __init__(
        self,
        host: ThreadHost,
        steps: Steps,
        known: Callable[[Resource], State | None],
        tell: Callable[[Resource, State], object],
    ) -> None:
        """``known``: what the loop saw last; ``tell``: what we saw, for the loop."""
        self._host = host
        self._steps = steps
        self._known = known
        self._tell = tell

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all at once; those of one resource in one step."""
        until = self._host.clock.now() + timeout
        of: dict[Resource, list[Renewal]] = {}
        for item in batch:
            of.setdefault(item.resource, []).append(item)
        asked: dict[Resource, Pending[Reply]] = {}
        for resource, items in of.items():
            state = newer(self._known(resource), self._steps.known(resource))
            if state is not None:
                self._steps.saw(resource, state)
            command = Renew(tuple((item.ticket, item.lease) for item in items))
            asked[resource] = self._steps.step(resource, command)
        left = len(asked)

        def one_less(_: object) -> None:
            nonlocal left
            left -= 1

        for pending in asked.values():
            pending.then(one_less)
        self._host.run(lambda: left == 0, until)
        outcomes: dict[str, Grant | NotHeld | Exception] = {}
        for resource, items in of.items():
            told = _outcomes(asked[resource], len(items))
            pairs = zip(items, told, strict=True)
            outcomes |= {item.ticket: outcome for item, outcome in pairs}
            state = self._steps.known(resource)
            if state is not None:
                self._tell(resource, state)
        return [outcomes[item.ticket] for item in batch]

    def close(self) -> None:
        """The session is not ours."""


def _outcomes(
    pending: Pending[Reply], number: int
) -> Sequence[Grant | NotHeld | Exception]:
    if not pending.done:
        late = BackendUnavailable(what="the renewal was not answered in time")
        return (late,) * number
    error = pending.error
    if isinstance(error, Exception):
        return (error,) * number
    reply = pending.result()
    assert isinstance(reply, Renewed)
    return reply.outcomes
