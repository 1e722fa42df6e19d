"""The gate: all tasks of this process that wait for one resource.

Runs the two lanes' plans (``core.mode_queue``) over a store. Everything here happens in
the loop's thread and without awaiting: requests are handed to the store, answers come
back as callbacks. Nobody's cancellation can tear it.

A task that waits at a gate.

The waiting room: every gate of a ``Locks``, and the one task that watches time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import random

import anyio

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
from aiorwlock_remote.ports import Clock, EventLoop, Store
from aiorwlock_remote.runtime.cleanup import CleanupRetrier
from aiorwlock_remote.runtime.throttle import AcquireThrottle


def _new_pending() -> Pending[None]:
    return Pending()


@dataclass(slots=True, eq=False)
class TaskWaiter(Waiter):
    """A waiter with somebody to wake. ``error``: why it will never get in."""

    ready: Pending[None] = field(default_factory=_new_pending)
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
        return self._lane(mode).last_reply_to(waiter)

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
                waiter.last_reply = None  # nothing to be hoped for: all are turned away
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


MAX_IDLE_QUEUES = 1024
"""Gates that may stand idle, and alarms that nobody may wait for."""


class WakeSignal:
    """Somebody's ear for one resource's bell."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def clear(self) -> None:
        """Listen anew."""
        self._event = anyio.Event()

    def wake(self) -> None:
        """Wake whoever waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Until it rings, or for so long."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class WaitQueueRegistry:
    """Rings, alarms and gates. Lives in the loop's thread."""

    def __init__(
        self, nonce: str, store: Store, host: EventLoop, insisting: CleanupRetrier
    ) -> None:
        """``nonce`` names this process's places in the store."""
        self.insisting = insisting
        self.admission: AcquireThrottle = AcquireThrottle(host.clock)
        self._nonce = nonce
        self._store = store
        self._host = host
        self._queues: dict[Resource, WaitQueue] = {}
        self._sweep_at = MAX_IDLE_QUEUES
        self._knocks: dict[Resource, set[WakeSignal]] = {}
        self._alarms: list[tuple[float, int, WaitQueue | Resource]] = []
        self._armed: dict[WaitQueue | Resource, float] = {}
        """The alarm that counts: a gate's is never later than the gate is due."""
        self._sweep_alarms_at = MAX_IDLE_QUEUES
        self._order = count()
        self._nearer: anyio.Event | None = None
        self._sleeping_until = 0.0
        self._closed = False

    def queue(self, resource: Resource) -> WaitQueue:
        """The gate of a resource, made when first needed."""
        gate = self._queues.get(resource)
        if gate is None:
            self._sweep()
            gate = self._queues[resource] = WaitQueue(
                resource,
                self._nonce,
                self._store,
                self._host.clock,
                self._set_alarm,
                self.insisting,
                self.admission,
            )
        return gate

    def wake(self, resource: Resource, seconds: float) -> None:
        """The store's bell."""
        if self._closed:
            return
        if seconds <= 0:
            for knock in self._knocks.get(resource, ()):
                knock.wake()
            gate = self._queues.get(resource)
            if gate is not None:
                gate.wake()
        else:  # what was hinted before is not so any more
            self._push(self._host.clock.now() + seconds, resource)

    def listen(self, resource: Resource) -> WakeSignal:
        """An ear for this resource's bell; to be given back to ``unlisten``."""
        knock = WakeSignal()
        self._knocks.setdefault(resource, set()).add(knock)
        self._store.watch(resource)
        return knock

    def unlisten(self, resource: Resource, knock: WakeSignal) -> None:
        """Not listened to any more."""
        ears = self._knocks[resource]
        ears.discard(knock)
        if not ears:
            del self._knocks[resource]
            if resource not in self._queues or self._queues[resource].idle:
                self._store.unwatch(resource)

    def close(self) -> None:
        """No more looks; whoever waits was told by somebody else."""
        self._closed = True
        if self._nearer is not None:
            self._nearer.set()

    def sever(self, store: Store) -> None:
        """Turn to that store, and look at nothing any more: in a forked child."""
        self._closed, self._store = True, store
        for gate in self._queues.values():
            gate.sever(store)

    def _sweep(self) -> None:
        if len(self._queues) >= self._sweep_at:
            self._queues = {r: g for r, g in self._queues.items() if not g.idle}
            # So many are needed at once: not to be looked through for each new one.
            self._sweep_at = max(MAX_IDLE_QUEUES, 2 * len(self._queues))

    def _set_alarm(self, gate: WaitQueue) -> None:
        due = gate.due
        if due is None:
            return
        if due < self._armed.get(gate, math.inf):
            self._push(due, gate)
        else:
            self._watch(due)

    def _push(self, due: float, what: WaitQueue | Resource) -> None:
        if len(self._alarms) >= self._sweep_alarms_at:
            self._sweep_alarms()
        self._armed[what] = due
        heapq.heappush(self._alarms, (due, next(self._order), what))
        self._watch(due)

    def _sweep_alarms(self) -> None:
        """Leases may end in a day, and whoever waited for that has left long before."""
        self._armed = {w: due for w, due in self._armed.items() if self._awaited(w)}
        self._alarms = [a for a in self._alarms if self._armed.get(a[2]) == a[0]]
        heapq.heapify(self._alarms)
        self._sweep_alarms_at = max(MAX_IDLE_QUEUES, 2 * len(self._alarms))

    def _awaited(self, what: WaitQueue | Resource) -> bool:
        if isinstance(what, WaitQueue):
            return not what.idle
        gate = self._queues.get(what)
        return what in self._knocks or (gate is not None and not gate.idle)

    def _watch(self, due: float) -> None:
        if self._nearer is None:
            self._nearer = anyio.Event()
            self._host.spawn(self._watch_time)
        elif due < self._sleeping_until:
            self._nearer.set()

    async def _watch_time(self) -> None:
        try:
            while self._alarms and not self._closed:
                self._fire()
                if not self._alarms:
                    break
                self._nearer = anyio.Event()
                self._sleeping_until = self._alarms[0][0]
                pause = self._sleeping_until - self._host.clock.now()
                with anyio.move_on_after(max(0.0, pause)):
                    await self._nearer.wait()
        finally:
            self._nearer = None

    def _fire(self) -> None:
        now = self._host.clock.now()
        for _ in range(len(self._alarms)):  # those set meanwhile have their turn later
            if not self._alarms or self._alarms[0][0] > now:
                return
            due, _, what = heapq.heappop(self._alarms)
            if self._armed.get(what) != due:
                continue  # another one was set since
            del self._armed[what]
            if isinstance(what, Resource):
                self.wake(what, 0)
            else:
                what.look()
                self._set_alarm(what)  # the other side may be due later
