"""Waiting for mutexes of a ``MutexSet``, a group of mutexes in a sorted set of Redis.

For other locks each resource has its own ``WaitQueue`` and wake-ups. All mutexes of a
set share one queue among the processes, and one wake-up channel.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import random

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
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
from aiorwlock_remote.errors import BackendUnavailable, Closed
from aiorwlock_remote.ports import EventLoop
from aiorwlock_remote.ports.recipes import MutexSetMembers
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.fork import ForkedMembers, disable_in_children
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import WakeCause

ENTRY_TTL_POLLS = 3
"""Life of a queue entry in the store, in poll intervals."""
JITTER = 0.2
"""Fraction of the interval by which polls come earlier or later, at random."""
MIN_SPACING = 1.0
"""Seconds; ``PeriodicPoll`` polls at most twice in twice this time."""

OpenMembers = Callable[[Callable[[str | None], object]], MutexSetMembers]
"""Opens a set in the store. The argument is called for each wake-up, with the name of
the mutex, or None if any may be free; see ``StoreBase.members``."""


class PeriodicPoll:
    """Timer that calls ``poll()`` at intervals, from ``start()`` until ``end()``. Each
    ``hint`` makes the next call earlier; as hints may be many or wrong, there are at
    most two calls in two seconds. To be used in the event loop's thread.
    """

    def __init__(
        self, loop: EventLoop, every: float, poll: Callable[[], object]
    ) -> None:
        """Prepare to call ``poll`` every ``every`` seconds, with a random variation."""
        self._clock = loop.clock
        self._every = every
        self._poll = poll
        self._wanted = False
        self._hinted = math.inf
        self._planned = 0.0
        self._last_two: deque[float] = deque([-math.inf, -math.inf], maxlen=2)
        self._task = BackgroundTask(loop, self._run)

    def start(self) -> None:
        """Begin to poll. If the timer's task was cancelled, start a new one."""
        if not self._wanted:
            self._wanted = True
            self._hinted = math.inf
            self._plan()
        self._task.start()

    def end(self) -> None:
        if self._wanted:
            self._wanted = False
            self._task.wake()

    def hint(self, seconds: float) -> None:
        """Poll in about ``seconds`` seconds if the next poll is planned for later."""
        at = self._clock.now() + seconds
        if at < self._hinted:
            self._hinted = at
            if self._wanted:
                self._task.wake(by=self.due)

    @property
    def due(self) -> float:
        hinted = max(self._hinted, self._last_two[0] + 2 * MIN_SPACING)
        # The planned poll waits for the hint if that comes shortly after: alone it
        # would see nothing, and use up one of the two polls.
        if self._planned <= hinted <= self._planned + MIN_SPACING:
            return hinted
        return min(self._planned, hinted)

    def _plan(self) -> None:
        spread = 1 + JITTER * (2 * random() - 1)
        self._planned = self._clock.now() + self._every * spread

    async def _run(self) -> None:
        while self._wanted:
            if self.due > self._clock.now():
                await self._task.sleep_until(self.due)
            else:
                self._hinted = math.inf
                self._last_two.append(self._clock.now())
                self._plan()
                self._poll()


@dataclass(eq=False, slots=True)
class TargetWaiter:
    """A task that waits for a named mutex of a ``MutexSet``, or for any mutex of it.
    When ``ready`` is done, ``took`` is the mutex that the task got, or ``error`` says
    why it got none.
    """

    resource: Resource
    claim: Claim
    since: float
    ready: Pending[None] = field(default_factory=Pending[None])
    took: Taken | None = None
    # Local time before the request for this waiter was sent; 0: none was, so that
    # nothing has to be withdrawn if the waiter leaves.
    sent_at: float = 0.0
    # Local time up to which a request that was certainly not carried out is repeated.
    until: float = 0.0
    error: BaseException | None = None

    @property
    def target(self) -> str:
        """The name of the mutex, or ``ANY_MEMBER`` if any will do."""
        return self.resource.id

    @property
    def lease(self) -> int:
        assert self.claim.lease is not None, "a mutex of a set has a lease"
        return self.claim.lease

    def decide(self, error: BaseException | None = None) -> None:
        """Wake the waiting task; with ``error``, it fails even if it got a mutex."""
        if error is not None:
            self.took, self.error = None, error
        if not self.ready.done():
            self.ready.set_result(None)


@dataclass(eq=False, slots=True)
class TargetQueue:
    """The tasks that wait for the same target: a named mutex of a set, or any of it.

    It has not the states of ``core.queue_states``: ``SetWaitQueue`` forgets it when its
    last task leaves, and a task that comes next asks beside the request under way.
    """

    target: str
    waiters: deque[TargetWaiter] = field(default_factory=deque[TargetWaiter])
    # The waiter for which a request is under way. It may have left ``waiters``.
    asked: TargetWaiter | None = None
    # Whether the store has a queue entry of this process for the target.
    placed: bool = False
    # Requests that failed in a row, for the pause before the next.
    failures: int = 0


class SetWaitQueue:
    """The tasks of this process that wait for mutexes of one ``MutexSet``. Each waits
    for a target: a mutex by its name, or any mutex of the set. One request to the store
    asks for all targets that are due. No method that changes the state awaits, so that
    no cancellation can interrupt it.
    """

    def __init__(
        self, client: StoreClient, open_members: OpenMembers, poll_interval: float
    ) -> None:
        self._client = client
        self._clock = client.clock
        self._targets: dict[str, TargetQueue] = {}
        self._entry_ttl = ENTRY_TTL_POLLS * poll_interval
        self._lease = 0
        self._polls = PeriodicPoll(client.loop, poll_interval, self._poll)
        self.members: MutexSetMembers = open_members(self._wake)

    def join(self, waiter: TargetWaiter) -> None:
        if not self._targets:
            self.members.watch()
        self._lease = waiter.lease
        queue = self._targets.setdefault(waiter.target, TargetQueue(waiter.target))
        queue.waiters.append(waiter)
        # Only for the first: the others are served one after the other by its answers.
        if len(queue.waiters) == 1:
            self._ask([queue])
        self._polls.start()

    def leave(self, waiter: TargetWaiter) -> None:
        queue = self._targets.get(waiter.target)
        last = False
        if queue is not None and waiter in queue.waiters:
            queue.waiters.remove(waiter)
            last = not queue.waiters
            if last:
                self._drop(queue.target)
        # Also after the answer came: it may have been lost on the way.
        if waiter.sent_at or last:
            self.withdraw(waiter).log_failure()

    def withdraw(self, waiter: TargetWaiter) -> Pending[None]:
        """Withdraw a waiter's request, granted or not, so that the waiter holds
        nothing; repeat the withdrawal in the background if it fails.
        """
        retry = partial(self._withdraw, waiter)
        seconds = waiter.claim.seconds
        cleanup = self._client.cleanup
        return cleanup.retry_if_failed(retry(), waiter.resource, retry, seconds)

    def sever(self) -> None:
        self.members = ForkedMembers()

    def _withdraw(self, waiter: TargetWaiter) -> Pending[None]:
        # The entry of a target stays while other tasks wait for it: their request may
        # be under way, and would be withdrawn as well.
        entries = () if waiter.target in self._targets else (waiter.target,)
        return self.members.withdraw(entries, (waiter.claim.ticket,), waiter.lease)

    def _drop(self, target: str) -> None:
        del self._targets[target]
        if not self._targets:
            self.members.unwatch()
            self._polls.end()

    def _give_up_entry(self, target: str) -> None:
        self.members.withdraw((target,), (), self._lease).log_failure()

    def _wake(self, target: str | None) -> None:
        if target is None:
            # A change somewhere in the set. Do not ask at once: at a busy set each
            # change would make each process ask.
            if self._targets:
                self._polls.hint(0.0)
            return
        queue = self._targets.get(target)
        if queue is None:
            # All waiters have left: the turn goes to the next process.
            self._give_up_entry(target)
        elif queue.asked is None:
            # Else the request under way was carried out after the wake-up was sent.
            self._count("message")
            self._ask([queue])

    def _poll(self) -> None:
        self._count("poll")
        self._ask([queue for queue in self._targets.values() if queue.asked is None])

    def _count(self, cause: WakeCause) -> None:
        self._client.count_wake(cause)

    def _ask(self, queues: list[TargetQueue]) -> None:
        asks: list[TakeRequest] = []
        sent_at = self._clock.now()
        for queue in queues:
            first = queue.asked = queue.waiters[0]
            first.sent_at = sent_at
            more = len(queue.waiters) > 1
            asks.append(
                TakeRequest(first.target, first.claim.ticket, first.lease, more)
            )
        if asks:
            self._client.requests_sent += 1
            pending = self.members.ask(asks, self._entry_ttl)
            pending.add_done_callback(partial(self._answered, queues, asks, sent_at))

    def _answered(
        self,
        queues: list[TargetQueue],
        asks: list[TakeRequest],
        sent_at: float,
        pending: Pending[TakeReplies],
    ) -> None:
        if pending.error is not None:
            self._failed(queues, pending.error)
            return
        replies = pending.result()
        called = set(replies.rung)
        for queue, ask, answer in zip(queues, asks, replies.answers, strict=True):
            first, queue.asked = queue.asked, None
            if isinstance(answer, BaseException) and not _too_few_replicas(answer):
                self._failed([queue], answer)
                continue
            queue.placed, queue.failures = ask.more or isinstance(answer, Busy), 0
            if isinstance(answer, Taken):
                self._serve(queue, first, answer, sent_at)
            elif isinstance(answer, BaseException):
                self._turn_away(queue, first, answer)
            else:
                if answer.retry_after is not None:
                    self._polls.hint(answer.retry_after / 1e6)
                if len(asks) == 1:
                    # Refused and called in one answer: programs count with different
                    # leases. Asking again at once would repeat that without end.
                    called.discard(queue.target)
            if not queue.placed:
                called.add(queue.target)
        found = (self._targets.get(target) for target in called)
        self._ask([queue for queue in found if queue is not None and not queue.asked])

    def _serve(
        self,
        queue: TargetQueue,
        first: TargetWaiter | None,
        took: Taken,
        sent_at: float,
    ) -> None:
        if first is None or first not in queue.waiters:
            return  # the waiter left, and its withdrawal is under way
        queue.waiters.remove(first)
        first.took, first.sent_at = took, sent_at
        if not queue.waiters and self._targets.get(queue.target) is queue:
            self._drop(queue.target)
            if queue.placed:  # for waiters that left while the request was under way
                self._give_up_entry(queue.target)
        first.decide()

    def _turn_away(
        self, queue: TargetQueue, first: TargetWaiter | None, error: BaseException
    ) -> None:
        # Only the waiter that asked fails; the next one may find replicas again.
        if first is not None and first in queue.waiters:
            queue.waiters.remove(first)
            first.decide(error)
            if not queue.waiters and self._targets.get(queue.target) is queue:
                self._drop(queue.target)

    def _failed(self, queues: list[TargetQueue], error: BaseException) -> None:
        again = may_be_repeated(error)
        for queue in queues:
            queue.asked = None
            if queue.placed and isinstance(error, BackendUnavailable):
                # The entry stays in the store, and the next poll asks again: a store
                # that is away for a moment costs no waiter its turn.
                continue
            queue.failures += 1
            pause = back_off(queue.failures, random())
            asks_at = self._clock.now() + pause
            waiters = list(queue.waiters)
            queue.waiters.clear()
            for waiter in waiters:
                if again and asks_at < waiter.until:
                    queue.waiters.append(waiter)
                else:
                    waiter.decide(error)
            if queue.waiters:
                self._client.requests_retried += 1
                self._client.loop.spawn(partial(self._ask_later, queue, pause))
            elif self._targets.get(queue.target) is queue:
                self._drop(queue.target)

    async def _ask_later(self, queue: TargetQueue, seconds: float) -> None:
        await anyio.sleep(seconds)
        if self._targets.get(queue.target) is queue and queue.asked is None:
            self._ask([queue])


def _too_few_replicas(error: BaseException) -> bool:
    # Given back already, and asking again at once would find no more replicas.
    return isinstance(error, BackendUnavailable) and error.replicas is not None


class SetAcquirer(LockAcquirer):
    """Acquires mutexes of one ``MutexSet`` for the tasks of this process.

    A task asks for one mutex by its name, or for any free one of the set.
    """

    def __init__(
        self,
        name: str,
        client: StoreClient,
        open_members: OpenMembers,
        poll_interval: float,
    ) -> None:
        """Prepare to acquire mutexes of the set ``name``; no I/O. ``open_members``
        makes the access to the set in the store. ``poll_interval``: seconds between two
        requests of a waiter, in case a wake-up is lost.
        """
        super().__init__(client)
        self._name = name
        self._queue = SetWaitQueue(client, open_members, poll_interval)
        self._targeted: dict[TargetWaiter, None] = {}
        disable_in_children(self)

    @property
    def members(self) -> MutexSetMembers:
        return self._queue.members

    def close(self, error: BaseException) -> None:
        for waiter in list(self._targeted):
            self._queue.leave(waiter)
            waiter.decide(error)

    def waiters(self) -> Iterable[tuple[Mode, float]]:
        return [(Mode.WRITE, waiter.since) for waiter in self._targeted]

    def sever(self) -> None:
        self._queue.sever()

    async def _try(self, request: AcquireRequest) -> Lease:
        waiter = self._waiter(request)
        take = TakeRequest(waiter.target, waiter.claim.ticket, waiter.lease)

        async def ask() -> Taken | Busy:
            waiter.sent_at = self._clock.now()
            (answer,) = (await self.members.ask((take,), 0.0)).answers
            if isinstance(answer, BaseException):
                raise answer
            return answer

        with self._client.in_flight.under(partial(self._forget, waiter)):
            try:
                answer = await self._client.answer(ask)
                await checkpoint()
            except BaseException as exc:
                await self._undo(request, waiter, exc)
                raise
        if isinstance(answer, Busy):
            raise self.timed_out(request, retry_after=answer.retry_after)
        waiter.took = answer
        return self._lease(request, waiter)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        waiter = self._waiter(request)
        waiter.until = waiter.since + self._client.connect_timeout
        if until is not None:
            waiter.until = min(waiter.until, until)
        self._targeted[waiter] = None
        self._queue.join(waiter)
        self._client.throttle.let_in()
        try:
            left = None if until is None else max(0.0, until - self._clock.now())
            with anyio.move_on_after(left):
                await waiter.ready
        except BaseException:
            if not isinstance(waiter.error, Closed):
                self._queue.leave(waiter)
            raise
        finally:
            self._targeted.pop(waiter, None)
        if waiter.error is not None:
            await self._undo(request, waiter, waiter.error, until)
            raise waiter.error
        if waiter.took is None:
            self._queue.leave(waiter)
            raise self.timed_out(request)
        return self._lease(request, waiter)

    async def _undo(
        self,
        request: AcquireRequest,
        waiter: TargetWaiter,
        error: BaseException,
        until: float | None = None,
    ) -> None:
        if not is_uncertain(error):
            return
        withdrawn = self._queue.withdraw(waiter)
        if isinstance(error, Exception):
            resource, claim = request.resource, waiter.claim
            await self._client.resolve(error, resource, withdrawn, claim, until)
        withdrawn.log_failure()

    def _forget(self, waiter: TargetWaiter) -> None:
        self._queue.withdraw(waiter).log_failure()

    def _waiter(self, request: AcquireRequest) -> TargetWaiter:
        claim = self._client.claim(request)
        return TargetWaiter(request.resource, claim, self._clock.now())

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
        return self._client.lease(mine, grant, waiter.sent_at)
