"""The gate: all tasks of this process that wait for one resource.

Runs the two lanes' plans (``core.mode_queue``) over a store. Everything here happens in
the loop's thread and without awaiting: requests are handed to the store, answers come
back as callbacks. Nobody's cancellation can tear it.

A task that waits at a gate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import random

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import (
    Acquire,
    Answer,
    Command,
    Granted,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.uncertainty import is_uncertain, may_be_repeated
from aiorwlock_remote.errors import BackendUnavailable, TooManyWaiters
from aiorwlock_remote.ports import Clock, Store
from aiorwlock_remote.runtime.cleanup import CleanupRetrier
from aiorwlock_remote.runtime.throttle import AcquireThrottle


def _unanswered() -> Pending[None]:
    return Pending()


@dataclass(slots=True, eq=False)
class TaskWaiter(Waiter):
    """A waiter with somebody to wake. ``error``: why it will never get in."""

    ready: Pending[None] = field(default_factory=_unanswered)
    error: BaseException | None = None

    @property
    def in_doubt(self) -> bool:
        """Turned away, and granted nonetheless, perhaps: it is to be taken back."""
        return is_uncertain(self.error)

    def decide(self) -> None:
        """It got in, or never will: wake it, once."""
        if not self.ready.done():
            self.ready.set_result(None)


_ANSWERS = Granted, Waiting, Refused


class WaitQueue:
    """One resource's waiters in this process.

    ``alarm(gate)`` is called whenever ``due`` may have come nearer.
    """

    def __init__(
        self,
        resource: Resource,
        nonce: str,
        store: Store,
        clock: Clock,
        alarm: Callable[[WaitQueue], None],
        insisting: CleanupRetrier,
        admission: AcquireThrottle,
    ) -> None:
        self._admission = admission
        self.resource = resource
        self._store = store
        self._clock = clock
        self._alarm = alarm
        self._insisting = insisting
        self._nonce = nonce
        self._reader = ModeQueue(nonce, Mode.READ, store.pace)
        self._writer = ModeQueue(nonce, Mode.WRITE, store.pace)
        self._lanes = (self._reader, self._writer)
        self._watched = False

    @property
    def idle(self) -> bool:
        """Nobody waits here."""
        return self._reader.idle and self._writer.idle

    @property
    def due(self) -> float | None:
        """When a lane is to look again, local clock."""
        times = [lane.due for lane in self._lanes if lane.due is not None]
        return min(times, default=None)

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return sum(len(lane.waiters) for lane in self._lanes)

    def join(self, waiter: TaskWaiter, mode: Mode) -> None:
        """Wait; the waiter is ``ready`` when it is decided.

        Raises:
            TooManyWaiters: as many tasks of this process wait as ``max_waiters``.
        """
        limit = waiter.max_waiters
        if limit is not None and self.waiting >= limit > 0:
            raise TooManyWaiters(resource=self.resource.label, limit=limit)
        lane = self._lane(mode)
        self._send(lane, lane.join(waiter))

    def leave(self, waiter: TaskWaiter, mode: Mode) -> None:
        """Give up waiting, at once; the withdrawal goes its way."""
        if waiter.grant is not None:
            self._over(self.release(waiter.ticket), waiter).log_failure()
        elif waiter.in_doubt:
            self.withdraw(waiter, mode).log_failure()
        else:
            withdraw = self._lane(mode).leave(waiter)
            if withdraw is not None:
                withdrawn = self._step(withdraw)
                if withdraw.tickets:
                    withdrawn = self._over(withdrawn, waiter)
                withdrawn.log_failure()
        self._unwatch_if_idle()

    def withdraw(self, waiter: TaskWaiter, mode: Mode) -> Pending[Reply]:
        """It was turned away: whatever became of its ticket, nothing is held by it."""
        keep = bool(self._lane(mode).waiters)
        withdraw = Withdraw(self._nonce, mode, (waiter.ticket,), keep=keep)
        return self._over(self._step(withdraw), waiter)

    def before(self, waiter: TaskWaiter, mode: Mode) -> int:
        """How many tasks of this process wait before this one for the same mode."""
        waiters = self._lane(mode).waiters
        return waiters.index(waiter) if waiter in waiters else 0

    def said(self, waiter: TaskWaiter, mode: Mode) -> Waiting | None:
        """What the store said last; None: it did not answer. See ``ModeQueue.said``."""
        return self._lane(mode).said(waiter)

    def wake(self) -> None:
        """The store has something for us, perhaps."""
        for lane in self._lanes:
            if not lane.idle:  # the bell may overtake the answer that gives the place
                self._send(lane, lane.wake())

    def look(self) -> None:
        """Ask for the lanes that are due."""
        now = self._clock.now()
        for lane in self._lanes:
            if lane.due is not None and lane.due <= now:
                self._send(lane, lane.ask())

    def release(self, ticket: str, mode: Mode | None = None) -> Pending[Reply]:
        """End a grant; the next waiters of this process ask in the same request."""
        if not (self._reader.watching or self._writer.watching):
            return self._step(Release(ticket, mode))
        carried = [
            (lane, acquire)
            for lane in self._lanes
            if lane.watching and (acquire := lane.ask()) is not None
        ]
        sent_at = self._clock.now()
        command = Release(ticket, mode, tuple(acquire for _, acquire in carried))
        pending = self._step(command)
        pending.add_done_callback(
            partial(self._released, [lane for lane, _ in carried], sent_at)
        )
        return pending

    def sever(self, store: Store) -> None:
        """Turn to that store: in a forked child."""
        self._store = store

    def _step(self, command: Command) -> Pending[Reply]:
        """Hand it to the store; what that raises is told as any later failure."""
        try:
            return self._store.step(self.resource, command)
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            failed: Pending[Reply] = Pending()
            failed.set_exception(exc)
            return failed

    def _over(self, ended: Pending[Reply], waiter: TaskWaiter) -> Pending[Reply]:
        # The place stays. It may be that of others, by then; the mode is that of it.
        withdraw = Withdraw(self._nonce, Mode.READ, (waiter.ticket,), keep=True)
        again, lease = partial(self._step, withdraw), waiter.claim.seconds
        return self._insisting.on(ended, self.resource, again, lease)

    def _lane(self, mode: Mode) -> ModeQueue:
        return self._writer if mode is Mode.WRITE else self._reader

    def _released(
        self, lanes: list[ModeQueue], sent_at: float, pending: Pending[Reply]
    ) -> None:
        if pending.error is not None:
            for lane in lanes:
                self._failed(lane, pending.error)
            return
        reply = pending.result()
        assert isinstance(reply, Released)
        for lane, answer in zip(lanes, reply.then, strict=True):
            self._tell(lane, answer, sent_at)

    def _send(self, lane: ModeQueue, command: Acquire | Withdraw | None) -> None:
        if command is None:
            return
        sent_at = self._clock.now()
        pending = self._step(command)
        if isinstance(command, Acquire):
            self._admission.sent(pending)
            pending.add_done_callback(partial(self._answered, lane, sent_at))
        else:
            pending.log_failure()

    def _answered(
        self, lane: ModeQueue, sent_at: float, pending: Pending[Reply]
    ) -> None:
        error = pending.error
        if error is None:
            reply = pending.result()
            assert isinstance(reply, _ANSWERS)
            self._tell(lane, reply, sent_at)
        else:
            self._failed(lane, error)

    def _tell(self, lane: ModeQueue, answer: Answer, sent_at: float) -> None:
        news = lane.answered(answer, sent_at, self._clock.now(), random())
        if news.turned_away:
            for away in news.turned_away:
                assert isinstance(away, TaskWaiter)
                limit = away.max_waiters or 0
                away.error = TooManyWaiters(resource=self.resource.label, limit=limit)
        self._spread(lane, news)

    def _failed(self, lane: ModeQueue, error: BaseException) -> None:
        if not isinstance(error, BackendUnavailable) or error.replicas is not None:
            for waiter in lane.waiters:
                waiter.told = None  # nothing to be hoped for: all are turned away
        repeat = may_be_repeated(error)
        news = lane.failed(self._clock.now(), random(), repeat=repeat)
        for away in news.turned_away:
            assert isinstance(away, TaskWaiter)
            away.error = error
        self._spread(lane, news)

    def _spread(self, lane: ModeQueue, news: Effects) -> None:
        for decided in (news.served, news.turned_away):
            for waiter in decided:
                assert isinstance(waiter, TaskWaiter)
                waiter.decide()
        if news.send is not None:
            self._send(lane, news.send)
        if lane.due is not None:
            self._alarm(self)
        if self._watched:
            self._unwatch_if_idle()
        elif lane.watching:
            self._watched = True
            self._store.watch(self.resource)

    def _unwatch_if_idle(self) -> None:
        if self._watched and self.idle:
            self._watched = False
            self._store.unwatch(self.resource)
