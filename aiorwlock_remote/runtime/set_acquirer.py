"""A pool: takes mutexes of one set for the tasks of this process, or waits for them.

The tasks of this process that wait for mutexes of one set, in lanes.

(Other locks have a ``TargetQueue`` and a ``TargetWaiter`` of their own, in
``core.mode_queue``: there each resource has a queue and a bell, here a set has one for
all its mutexes.)

Who waits for the same mutex, or for any, stands in one lane; the first of a lane asks,
for the place that the lane has in the set's queue among the processes. All lanes are
looked after in one request. Everything happens in the loop's thread and without
awaiting: nobody's cancellation can tear it.

Looking after something from time to time, sooner on a hint, but not too often.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import random

import anyio

from aiorwlock_remote._util.pending import Pending, checkpoint
from aiorwlock_remote.core.commands import Claim
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mutex_set import (
    Busy,
    SetMember,
    Taken,
    TakeReplies,
    TakeRequest,
)
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain, may_be_repeated
from aiorwlock_remote.errors import BackendUnavailable, Closed, LockTimeout
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.ports.recipes import MutexSetMembers
from aiorwlock_remote.runtime.acquirer import BaseAcquirer
from aiorwlock_remote.runtime.cleanup import CleanupRetrier
from aiorwlock_remote.runtime.fork import ForkedMembers, disable_in_children
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient

JITTER = 0.2
"""Looks come this fraction earlier or later, so that processes do not meet."""
MIN_SPACING = 1.0
"""Seconds: two looks in any two of them, and no more, whatever is hinted."""


class PeriodicPoll:
    """Calls ``look()`` every so many seconds, between ``start`` and ``end``.

    A ``hint`` brings the next look nearer. Hints are cheap and may be wrong: looks are
    at most two in 2 s, one a second on the average.
    """

    def __init__(
        self, host: EventLoop, every: float, look: Callable[[], object]
    ) -> None:
        """Not started."""
        self._host = host
        self._clock = host.clock
        self._every = every
        self._look = look
        self._wanted = False
        self._running = False
        self._nearer = anyio.Event()
        self._hinted = math.inf
        self._polled = 0.0
        self._looks: deque[float] = deque([-math.inf, -math.inf], maxlen=2)

    def start(self) -> None:
        """Somebody is to be looked after."""
        if not self._wanted:
            self._wanted = True
            self._hinted = math.inf
            self._plan()
        if not self._running:  # whoever cancelled all tasks has cancelled it as well
            self._running = True
            self._host.spawn(self._run)

    def end(self) -> None:
        """Nobody is."""
        self._wanted = False
        self._nearer.set()

    def hint(self, seconds: float) -> None:
        """There may be something to see in so many seconds."""
        at = self._clock.now() + seconds
        if at < self._hinted:
            self._hinted = at
            self._nearer.set()

    @property
    def due(self) -> float:
        """When the next look is, local clock."""
        hinted = max(self._hinted, self._looks[0] + 2 * MIN_SPACING)
        # A look just before would be wasted, and use up what the hint needs.
        if self._polled <= hinted <= self._polled + MIN_SPACING:
            return hinted
        return min(self._polled, hinted)

    def _plan(self) -> None:
        spread = 1 + JITTER * (2 * random() - 1)
        self._polled = self._clock.now() + self._every * spread

    async def _run(self) -> None:
        try:
            while self._wanted:
                self._nearer = anyio.Event()
                pause = self.due - self._clock.now()
                if pause > 0:
                    with anyio.move_on_after(pause):
                        await self._nearer.wait()
                else:
                    self._hinted = math.inf
                    self._looks.append(self._clock.now())
                    self._plan()
                    self._look()
        finally:
            self._running = False


ENTRY_TTL_POLLS = 3
"""Looks that a place outlives."""


class TargetWaiter:
    """Somebody who wants ``target``, until ``ready`` is done.

    ``until``: up to this local time a request that was certainly not carried out is
    sent again.
    """

    __slots__ = (
        "claim",
        "error",
        "ready",
        "resource",
        "sent_at",
        "target",
        "took",
        "until",
    )

    def __init__(self, resource: Resource, claim: Claim) -> None:
        self.resource: Resource = resource
        self.target: str = resource.id
        self.claim: Claim = claim
        self.ready: Pending[None] = Pending()
        self.took: Taken | None = None
        self.sent_at: float = 0.0
        self.until: float = 0.0
        self.error: BaseException | None = None

    @property
    def lease(self) -> int:
        """Microseconds."""
        assert self.claim.lease is not None, "who takes from a set has a lease"
        return self.claim.lease

    def decide(self, error: BaseException | None = None) -> None:
        """It got in, or never will; an error counts until somebody has looked."""
        if error is not None:
            self.took, self.error = None, error
        if not self.ready.done():
            self.ready.set_result(None)


class TargetQueue:
    """Who waits for the same. ``placed``: the store knows that somebody does."""

    __slots__ = ("asked", "failures", "placed", "target", "waiters")

    def __init__(self, target: str) -> None:
        self.target: str = target
        self.waiters: deque[TargetWaiter] = deque()
        self.asked: TargetWaiter | None = None
        self.placed: bool = False
        self.failures: int = 0


class SetWaitQueue:
    """Everybody of this process who waits for one set."""

    def __init__(
        self,
        host: EventLoop,
        insisting: CleanupRetrier,
        members: Callable[[Callable[[str | None], object]], MutexSetMembers],
        look_every: float,
    ) -> None:
        """As ``Pool``."""
        self._host = host
        self._clock = host.clock
        self._insisting = insisting
        self._lanes: dict[str, TargetQueue] = {}
        self._life = ENTRY_TTL_POLLS * look_every
        self._lease = 0
        self._rounds = PeriodicPoll(host, look_every, self._look)
        self.members: MutexSetMembers = members(self._ring)

    def join(self, waiter: TargetWaiter) -> None:
        """Wait; the waiter is ``ready`` when it is decided."""
        if not self._lanes:
            self.members.watch()
        self._lease = waiter.lease
        lane = self._lanes.setdefault(waiter.target, TargetQueue(waiter.target))
        lane.waiters.append(waiter)
        if len(lane.waiters) == 1:
            self._ask([lane])
        self._rounds.start()

    def leave(self, waiter: TargetWaiter) -> None:
        """Give up waiting, or what it was given; it goes its way at once."""
        lane = self._lanes.get(waiter.target)
        last = False
        if lane is not None and waiter in lane.waiters:
            lane.waiters.remove(waiter)
            last = not lane.waiters
            if last:
                self._drop(lane.target)
        # Its answer may be on the way, or may have been lost.
        if waiter.sent_at or last:
            self.withdraw(waiter).log_failure()

    def withdraw(self, waiter: TargetWaiter) -> Pending[None]:
        """Whatever became of its ticket, nothing is held by it, and no place stays."""
        again = partial(self._take_back, waiter)
        seconds = waiter.claim.seconds
        return self._insisting.on(again(), waiter.resource, again, seconds)

    def sever(self) -> None:
        """Nothing is sent any more: this process is a forked child."""
        self.members = ForkedMembers()

    def _take_back(self, waiter: TargetWaiter) -> Pending[None]:
        # A request of who waits there now may be under way.
        places = () if waiter.target in self._lanes else (waiter.target,)
        return self.members.withdraw(places, (waiter.claim.ticket,), waiter.lease)

    def _drop(self, target: str) -> None:
        del self._lanes[target]
        if not self._lanes:
            self.members.unwatch()
            self._rounds.end()

    def _give_up_place(self, target: str) -> None:
        self.members.withdraw((target,), (), self._lease).log_failure()

    def _ring(self, target: str | None) -> None:
        """The store: it is our turn there, or (None) something has changed."""
        if target is None:
            if self._lanes:
                self._rounds.hint(0.0)
            return
        lane = self._lanes.get(target)
        if lane is None:
            self._give_up_place(target)
        elif lane.asked is None:
            # Else what is on its way was carried out after this was sent.
            self._ask([lane])

    def _look(self) -> None:
        self._ask([lane for lane in self._lanes.values() if lane.asked is None])

    def _ask(self, lanes: list[TargetQueue]) -> None:
        asks: list[TakeRequest] = []
        sent_at = self._clock.now()
        for lane in lanes:
            first = lane.asked = lane.waiters[0]
            first.sent_at = sent_at
            more = len(lane.waiters) > 1
            asks.append(
                TakeRequest(first.target, first.claim.ticket, first.lease, more)
            )
        if asks:
            pending = self.members.ask(asks, self._life)
            pending.add_done_callback(partial(self._answered, lanes, asks, sent_at))

    def _answered(
        self,
        lanes: list[TargetQueue],
        asks: list[TakeRequest],
        sent_at: float,
        pending: Pending[TakeReplies],
    ) -> None:
        if pending.error is not None:
            self._failed(lanes, pending.error)
            return
        told = pending.result()
        rung = set(told.rung)
        for lane, ask, answer in zip(lanes, asks, told.answers, strict=True):
            first, lane.asked = lane.asked, None
            if isinstance(answer, BaseException) and not _too_few_replicas(answer):
                self._failed([lane], answer)
                continue
            lane.placed, lane.failures = ask.more or isinstance(answer, Busy), 0
            if isinstance(answer, Taken):
                self._served(lane, first, answer, sent_at)
            elif isinstance(answer, BaseException):
                self._turned_away(lane, first, answer)
            else:
                if answer.retry_after is not None:
                    self._rounds.hint(answer.retry_after / 1e6)
                if len(asks) == 1:
                    # Refused and called in one answer: leases differ. Ask later.
                    rung.discard(lane.target)
            if not lane.placed:
                rung.add(lane.target)
        called = (self._lanes.get(target) for target in rung)
        self._ask([lane for lane in called if lane is not None and not lane.asked])

    def _served(
        self, lane: TargetQueue, first: TargetWaiter | None, took: Taken, sent_at: float
    ) -> None:
        if first is None or first not in lane.waiters:
            return  # it left, and its withdrawal is on the way
        lane.waiters.remove(first)
        first.took, first.sent_at = took, sent_at
        if not lane.waiters and self._lanes.get(lane.target) is lane:
            self._drop(lane.target)
            if lane.placed:  # for others, who left while this was on its way
                self._give_up_place(lane.target)
        first.decide()

    def _turned_away(
        self, lane: TargetQueue, first: TargetWaiter | None, error: BaseException
    ) -> None:
        """Only the one who asked: the others have their turn, and may be luckier."""
        if first is not None and first in lane.waiters:
            lane.waiters.remove(first)
            first.decide(error)
            if not lane.waiters and self._lanes.get(lane.target) is lane:
                self._drop(lane.target)

    def _failed(self, lanes: list[TargetQueue], error: BaseException) -> None:
        again = may_be_repeated(error)
        for lane in lanes:
            lane.asked = None
            if lane.placed and isinstance(error, BackendUnavailable):
                continue  # it keeps its place, and asks again at the next look
            lane.failures += 1
            pause = back_off(lane.failures, random())
            asks_at = self._clock.now() + pause
            waiters = list(lane.waiters)
            lane.waiters.clear()
            for waiter in waiters:
                if again and asks_at < waiter.until:
                    lane.waiters.append(waiter)
                else:
                    waiter.decide(error)
            if lane.waiters:
                self._host.spawn(partial(self._ask_later, lane, pause))
            elif self._lanes.get(lane.target) is lane:
                self._drop(lane.target)

    async def _ask_later(self, lane: TargetQueue, seconds: float) -> None:
        await anyio.sleep(seconds)
        if self._lanes.get(lane.target) is lane and lane.asked is None:
            self._ask([lane])


def _too_few_replicas(error: BaseException) -> bool:
    """Too few replicas had it; that will not be better for who asks again at once."""
    return isinstance(error, BackendUnavailable) and error.replicas is not None


class SetAcquirer(BaseAcquirer):
    """Waits for mutexes of one set, and takes them."""

    def __init__(
        self,
        name: str,
        drive: StoreClient,
        members: Callable[[Callable[[str | None], object]], MutexSetMembers],
        look_every: float,
    ) -> None:
        """``members`` opens the set in the store; ``look_every`` seconds it is asked.

        ``revalidate_seconds`` of the published design: in case no message came.
        """
        super().__init__(
            drive.host.clock, drive.keeper, drive.admission, drive.patience
        )
        self._name = name
        self._drive = drive
        self._lanes = SetWaitQueue(drive.host, drive.insisting, members, look_every)
        self._waiting: set[TargetWaiter] = set()
        disable_in_children(self)

    @property
    def members(self) -> MutexSetMembers:
        """The set in the store."""
        return self._lanes.members

    def close(self, error: BaseException) -> None:
        """End all waiting with ``error``."""
        for waiter in list(self._waiting):
            self._lanes.leave(waiter)
            waiter.decide(error)

    def sever(self) -> None:
        """This process is a forked child: send nothing from now on."""
        self._lanes.sever()

    def _let_go(self, lease: Lease) -> None:
        self._drive.release(lease).log_failure()

    async def _try(self, request: AcquireRequest) -> Lease:
        waiter = self._waiter(request)
        asked = TakeRequest(waiter.target, waiter.claim.ticket, waiter.lease)

        async def ask() -> Taken | Busy:
            waiter.sent_at = self._clock.now()
            (answer,) = (await self.members.ask((asked,), 0.0)).answers
            if isinstance(answer, BaseException):
                raise answer
            return answer

        with self._drive.closing.under(partial(self._forget, waiter)):
            try:
                answer = await self._drive.answer(ask)
                await checkpoint()
            except BaseException as exc:
                await self._take_back(request, waiter, exc)
                raise
        if isinstance(answer, Busy):
            raise self._timed_out(request, answer)
        waiter.took = answer
        return self._lease(request, waiter)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        waiter = self._waiter(request)
        waiter.until = self._clock.now() + self._drive.patience
        if until is not None:
            waiter.until = min(waiter.until, until)
        self._waiting.add(waiter)
        self._lanes.join(waiter)
        self._admission.let_in()
        try:
            left = None if until is None else max(0.0, until - self._clock.now())
            with anyio.move_on_after(left):
                await waiter.ready
        except BaseException:
            if not isinstance(waiter.error, Closed):
                self._lanes.leave(waiter)
            raise
        finally:
            self._waiting.discard(waiter)
        if waiter.error is not None:
            await self._take_back(request, waiter, waiter.error, until)
            raise waiter.error
        if waiter.took is None:
            self._lanes.leave(waiter)
            raise self._timed_out(request, None)
        return self._lease(request, waiter)

    async def _take_back(
        self,
        request: AcquireRequest,
        waiter: TargetWaiter,
        error: BaseException,
        until: float | None = None,
    ) -> None:
        """Whatever the store made of it, nothing stays; who is told waits for that."""
        if not is_uncertain(error):
            return
        withdrawn = self._lanes.withdraw(waiter)
        if isinstance(error, Exception):
            resource, claim = request.resource, waiter.claim
            await self._drive.resolve(error, resource, withdrawn, claim, until)
        withdrawn.log_failure()

    def _forget(self, waiter: TargetWaiter) -> None:
        self._lanes.withdraw(waiter).log_failure()

    def _waiter(self, request: AcquireRequest) -> TargetWaiter:
        return TargetWaiter(request.resource, self._drive.asking.claim(request))

    def _lease(self, request: AcquireRequest, waiter: TargetWaiter) -> Lease:
        took = waiter.took
        assert took is not None
        member = SetMember(self._name, took.name)
        grant = Grant(
            waiter.claim.ticket,
            Mode.WRITE,
            took.fence,
            took.fence,
            took.fence + waiter.lease,
        )
        mine = replace(request, resource=member)
        return self._drive.lease(mine, grant, waiter.sent_at)

    def _timed_out(self, request: AcquireRequest, busy: Busy | None) -> LockTimeout:
        after = None if busy is None or busy.retry_after is None else busy.retry_after
        return LockTimeout(
            resource=request.resource.label,
            mode=str(Mode.WRITE),
            timeout=request.timeout or 0.0,
            retry_after=None if after is None else after / 1e6,
        )
