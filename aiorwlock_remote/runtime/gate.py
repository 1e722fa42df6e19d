"""The gate: all tasks of this process that wait for one resource.

Runs the two lanes' plans (``core.lane``) over a store. Everything here happens in the
loop's thread and without awaiting: requests are handed to the store, answers come back
as callbacks. Nobody's cancellation can tear it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import random

import anyio

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.lane import Lane, News, Waiter
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.errors import BackendError, BackendUnavailable, TooManyWaiters
from aiorwlock_remote.ports import Clock, Pending, Store


class Visitor(Waiter):
    """A waiter with somebody to wake. ``error``: why it will never get in."""

    __slots__ = ("error", "event")

    def __init__(
        self, claim: Claim, policy: Policy, max_waiters: int | None = None
    ) -> None:
        """Like ``Waiter``."""
        super().__init__(claim, policy, max_waiters)
        self.event: anyio.Event = anyio.Event()
        self.error: BaseException | None = None

    @property
    def decided(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.grant is not None or self.error is not None


class Gate:
    """One resource's waiters in this process.

    ``alarm(gate)`` is called whenever ``due`` may have come nearer.
    """

    def __init__(
        self,
        resource: Resource,
        nonce: str,
        store: Store,
        clock: Clock,
        alarm: Callable[[Gate], None],
    ) -> None:
        self.resource = resource
        self._store = store
        self._clock = clock
        self._alarm = alarm
        self._lanes = {mode: Lane(nonce, mode, store.pace) for mode in Mode}
        self._watched = False

    @property
    def idle(self) -> bool:
        """Nobody waits here."""
        return all(lane.idle for lane in self._lanes.values())

    @property
    def due(self) -> float | None:
        """When a lane is to look again, local clock."""
        times = [lane.due for lane in self._lanes.values() if lane.due is not None]
        return min(times, default=None)

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return sum(len(lane.waiters) for lane in self._lanes.values())

    def join(self, waiter: Visitor, mode: Mode) -> None:
        """Wait; the waiter's event is set when it is decided.

        Raises:
            TooManyWaiters: as many tasks of this process wait as ``max_waiters``.
        """
        limit = waiter.max_waiters
        if limit is not None and self.waiting >= limit > 0:
            raise TooManyWaiters(resource=self.resource.label, limit=limit)
        self._send(mode, self._lanes[mode].join(waiter))

    def leave(self, waiter: Visitor, mode: Mode) -> None:
        """Give up waiting, at once; the withdrawal goes its way."""
        if waiter.grant is not None:
            self.release(waiter.ticket).unawaited()
        else:
            self._send(mode, self._lanes[mode].leave(waiter))
        self._unwatch_if_idle()

    def waits(self, mode: Mode) -> bool:
        """Whether tasks wait for this mode."""
        return bool(self._lanes[mode].waiters)

    def ring(self) -> None:
        """The store has something for us, perhaps."""
        for mode, lane in self._lanes.items():
            if not lane.idle:  # the bell may overtake the answer that gives the place
                self._send(mode, lane.ring())

    def look(self) -> None:
        """Ask for the lanes that are due."""
        now = self._clock.now()
        for mode, lane in self._lanes.items():
            if lane.due is not None and lane.due <= now:
                self._send(mode, lane.ask())

    def release(self, ticket: str, mode: Mode | None = None) -> Pending[Reply]:
        """End a grant; the next waiters of this process ask in the same request."""
        carried = [
            (lane, acquire)
            for lane in self._lanes.values()
            if lane.watching and (acquire := lane.ask()) is not None
        ]
        sent_at = self._clock.now()
        command = Release(ticket, mode, tuple(acquire for _, acquire in carried))
        pending = self._store.step(self.resource, command)
        pending.then(partial(self._released, [lane for lane, _ in carried], sent_at))
        return pending

    def _released(
        self, lanes: list[Lane], sent_at: float, pending: Pending[Reply]
    ) -> None:
        try:
            reply = pending.result()
        except BackendError as exc:
            for lane in lanes:
                self._failed(lane, exc)
            return
        assert isinstance(reply, Released)
        for lane, answer in zip(lanes, reply.then, strict=True):
            self._tell(lane, answer, sent_at)

    def _send(self, mode: Mode, command: Acquire | Withdraw | None) -> None:
        if command is None:
            return
        sent_at = self._clock.now()
        pending = self._store.step(self.resource, command)
        if isinstance(command, Acquire):
            pending.then(partial(self._answered, self._lanes[mode], sent_at))
        else:
            pending.unawaited()

    def _answered(self, lane: Lane, sent_at: float, pending: Pending[Reply]) -> None:
        try:
            reply = pending.result()
        except BackendError as exc:
            self._failed(lane, exc)
            return
        assert isinstance(reply, Granted | Waiting | Refused)
        self._tell(lane, reply, sent_at)

    def _tell(
        self, lane: Lane, answer: Granted | Waiting | Refused, sent_at: float
    ) -> None:
        news = lane.answered(answer, sent_at, self._clock.now(), random())
        limit = TooManyWaiters(resource=self.resource.label)
        self._spread(lane, news, limit)

    def _failed(self, lane: Lane, error: BackendError) -> None:
        if not isinstance(error, BackendUnavailable):
            for waiter in lane.waiters:
                waiter.told = None  # nothing to be hoped for: all are turned away
        news = lane.failed(self._clock.now(), random())
        self._spread(lane, news, error)

    def _spread(self, lane: Lane, news: News, error: BaseException) -> None:
        for waiter in news.served:
            assert isinstance(waiter, Visitor)
            waiter.event.set()
        for waiter in news.turned_away:
            assert isinstance(waiter, Visitor)
            if isinstance(error, TooManyWaiters):
                error.limit = waiter.max_waiters or 0
            waiter.error = error
            waiter.event.set()
        mode = next(mode for mode, each in self._lanes.items() if each is lane)
        self._send(mode, news.send)
        if lane.due is not None:
            self._alarm(self)
        if lane.watching and not self._watched:
            self._watched = True
            self._store.watch(self.resource)
        self._unwatch_if_idle()

    def _unwatch_if_idle(self) -> None:
        if self._watched and self.idle:
            self._watched = False
            self._store.unwatch(self.resource)
