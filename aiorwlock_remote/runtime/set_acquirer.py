"""Waiting for mutexes of a ``MutexSet``, a group of mutexes in a sorted set of Redis.

Each target (a mutex by its name, or any of the set) has a ``WaitQueue``, as other locks
have. The mutexes of a set share their wake-ups, and one request to the store asks for
all targets that are due.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import (
    HELD,
    Acquire,
    Claim,
    Command,
    Granted,
    Refused,
    Release,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mode_queue import ModeQueue
from aiorwlock_remote.core.mutex_set import (
    Busy,
    MemberGrant,
    SetMember,
    Taken,
    TakeReplies,
    TakeRequest,
)
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, PollPolicy, around
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.ports.recipes import MutexSetMembers
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.fork import ForkedMembers, disable_in_children
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue

JITTER = 0.2
"""Fraction of the interval by which polls come earlier or later, at random."""
MIN_SPACING = 1.0
"""Seconds; a set is polled at most twice in twice this time."""

OpenMembers = Callable[[Callable[[str | None], object]], MutexSetMembers]
"""Opens a set in the store. The argument is called for each wake-up, with the name of
the mutex, or None if any may be free; see ``StoreBase.members``."""


class TargetQueue(WaitQueue):
    """The tasks of this process that wait for one target: a named mutex, or any."""

    # All targets share one queue in the store: an entry for no task delays all others.
    repeats_withdrawals: bool = True
    asks_alone: bool = False

    def __init__(
        self, acquirer: SetAcquirer, member: SetMember, client: StoreClient
    ) -> None:
        super().__init__(member, client, acquirer.set_alarm, acquirer.poll_policy)
        self._acquirer = acquirer

    def join(self, waiter: TaskWaiter, mode: Mode) -> None:
        # Before the request, so that no change of the set behind its reply is missed.
        self._acquirer.add(self)
        super().join(waiter, mode)

    def release(self, ticket: str, mode: Mode | None = None) -> Pending[Reply]:
        # The next task is woken by the reply: one step cannot release and take.
        return self._client.step(self.resource, Release(ticket, mode))

    def poll(self) -> None:
        """Request the mutex, unless a request is under way or no task waits."""
        acquire = self._writers.ask()
        if acquire is not None:
            self._note_wake(self._writers, "poll")
            self._send(self._writers, acquire)

    def _step(
        self, command: Command, send: Callable[[], Pending[Reply]] | None = None
    ) -> Pending[Reply]:
        assert send is None, "a set pushes no grants"
        if isinstance(command, Acquire):
            return self._acquirer.ask(self.resource.id, command)
        assert isinstance(command, Withdraw)
        return self._acquirer.withdraw(self.resource.id, command.tickets)

    def _watch_if_placed(self, queue: ModeQueue) -> None:
        del queue
        self._unwatch_if_idle()

    def _unwatch_if_idle(self) -> None:
        if self.idle:
            self._acquirer.drop(self)


class SetAcquirer(LockAcquirer):
    """Acquires mutexes of one ``MutexSet`` for the tasks of this process.

    A task asks for one mutex by its name, or for any free one of the set. One timer
    polls for all targets. A hint that a mutex may be free makes the next poll earlier;
    as hints may be many or wrong, there are at most two polls in two seconds.
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
        soonest, latest = (around(poll_interval, at, JITTER) for at in (0.0, 1.0))
        # The end of a lease is a hint of this class, in place of an earlier poll.
        self.poll_policy: PollPolicy = PollPolicy(
            soonest, latest, 3 * latest, sees_ends=True
        )
        self._name = name
        self._queues: dict[str, TargetQueue] = {}
        self._lease = 0
        # The requests to be sent together, and whether more of them may come.
        self._batch: list[tuple[TakeRequest, Pending[Reply]]] = []
        self._collecting = False
        self._hinted = math.inf
        self._last_two: deque[float] = deque([-math.inf, -math.inf], maxlen=2)
        self._timer = BackgroundTask(client.loop, self._watch_time)
        self.members: MutexSetMembers = open_members(self._wake)
        disable_in_children(self)

    def sever(self) -> None:
        self.members = ForkedMembers()

    def add(self, queue: TargetQueue) -> None:
        """Note that a task is about to wait in this queue."""
        if not self._queues:
            self._hinted = math.inf
            self.members.watch()
        self._queues[queue.resource.id] = queue
        # The task of the timer may have been cancelled from outside
        # (test_polls_go_on_after_every_task_was_cancelled).
        self._timer.start()

    def drop(self, queue: TargetQueue) -> None:
        """Forget a queue in which no task waits."""
        if self._queues.get(queue.resource.id) is queue:
            del self._queues[queue.resource.id]
            if not self._queues:
                self.members.unwatch()
                self._timer.wake()

    def ask(self, target: str, acquire: Acquire) -> Pending[Reply]:
        """Send an acquire, maybe together with others; return the reply to come."""
        take = self._take(target, acquire.claims[0], more=acquire.more > 0)
        reply: Pending[Reply] = Pending()
        self._batch.append((take, reply))
        if not self._collecting:
            self._send_batch()
        return reply

    def withdraw(self, target: str, tickets: tuple[str, ...]) -> Pending[Reply]:
        """Withdraw tickets, and the queue entry of the target if no task waits there.

        At each repetition this looks anew: tasks may have joined, and the entry would
        be that of their request.
        """
        queue = self._queues.get(target)
        entries = () if queue is not None and queue.waiting else (target,)
        return self.members.withdraw(entries, tickets, self._lease)

    def set_alarm(self, _: WaitQueue) -> None:
        """Wake the timer by the time of the next poll."""
        self._timer.wake(by=self._due)

    def _queue(self, resource: Resource) -> WaitQueue:
        assert isinstance(resource, SetMember)
        known = self._queues.get(resource.id)
        return known or TargetQueue(self, resource, self._client)

    async def _ask(self, request: AcquireRequest, claim: Claim) -> Reply:
        resource = request.resource
        take = self._take(resource.id, claim)
        retry = partial(self.withdraw, resource.id, (claim.ticket,))

        async def send() -> Reply:
            (answer,) = (await self.members.ask((take,), 0.0)).answers
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, Busy):
                return Refused(HELD, answer.retry_after)
            return _granted(take, answer)

        def withdraw() -> Pending[Reply]:
            cleanup = self._client.cleanup
            return cleanup.retry_if_failed(retry(), resource, retry, claim.seconds)

        return await self._client.obtain(resource, claim, send, withdraw)

    def _lease_of(
        self,
        request: AcquireRequest,
        grant: Grant,
        sent_at: float,
        ends: float | None = None,
    ) -> Lease:
        assert isinstance(grant, MemberGrant)
        taken = replace(request, resource=SetMember(self._name, grant.name))
        return super()._lease_of(taken, grant, sent_at, ends)

    def _take(self, target: str, claim: Claim, *, more: bool = False) -> TakeRequest:
        assert claim.lease is not None, "a mutex of a set has a lease"
        self._lease = claim.lease
        return TakeRequest(target, claim.ticket, claim.lease, more)

    @contextmanager
    def _together(self) -> Generator[None, None, None]:
        self._collecting = True
        try:
            yield
        finally:
            self._collecting = False
            self._send_batch()

    def _send_batch(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._client.requests_sent += 1
            asks = [take for take, _ in batch]
            pending = self.members.ask(asks, self.poll_policy.entry_ttl)
            pending.add_done_callback(partial(self._answered, batch))

    def _answered(
        self,
        batch: list[tuple[TakeRequest, Pending[Reply]]],
        pending: Pending[TakeReplies],
    ) -> None:
        if pending.error is not None:
            for _, reply in batch:
                reply.set_exception(pending.error)
            return
        replies = pending.result()
        called = set(replies.rung)
        if len(batch) == 1 and isinstance(replies.answers[0], Busy):
            # Refused and called in one answer: programs count with different leases.
            # Asking again at once would repeat that without end.
            called.discard(batch[0][0].target)
        with self._together():
            # First, as a queue whose request is under way only notes the wake-up.
            for target in called:
                self._wake(target)
            for (take, reply), answer in zip(batch, replies.answers, strict=True):
                if isinstance(answer, BaseException):
                    reply.set_exception(answer)
                elif isinstance(answer, Taken):
                    reply.set_result(_granted(take, answer))
                else:
                    if answer.retry_after is not None:
                        self._hint(answer.retry_after / MICROS)
                    reply.set_result(Waiting(0, answer.retry_after))

    def _wake(self, target: str | None) -> None:
        queue = None if target is None else self._queues.get(target)
        if queue is not None:
            queue.wake()
        elif target is not None:
            # All waiters have left: the turn goes to the next process.
            self.withdraw(target, ()).log_failure()
        elif self._queues:
            # A change somewhere in the set. Do not ask at once: at a busy set each
            # change would make each process ask.
            self._hint(0.0)

    def _hint(self, seconds: float) -> None:
        self._hinted = min(self._hinted, self._clock.now() + seconds)
        self._timer.wake(by=self._due)

    @property
    def _due(self) -> float:
        times = [q.due for q in self._queues.values() if q.due is not None]
        if not times:
            return math.inf
        planned = min(times)
        hinted = max(self._hinted, self._last_two[0] + 2 * MIN_SPACING)
        # The planned poll waits for the hint if that comes shortly after: alone it
        # would see nothing, and use up one of the two polls.
        if planned <= hinted <= planned + MIN_SPACING:
            return hinted
        return min(planned, hinted)

    async def _watch_time(self) -> None:
        while (due := self._due) < math.inf:
            if due > self._clock.now():
                await self._timer.sleep_until(due)
                continue
            self._hinted = math.inf
            self._last_two.append(self._clock.now())
            with self._together():
                for queue in list(self._queues.values()):
                    queue.poll()


def _granted(take: TakeRequest, taken: Taken) -> Granted:
    since, ends = taken.fence, taken.fence + take.lease
    grant = MemberGrant(
        take.ticket, Mode.WRITE, taken.fence, since, ends, name=taken.name
    )
    return Granted((grant,), since, placed=take.more)
