"""``WaitQueue``: the tasks of this process that wait for one resource.

A ``WaitQueue`` connects two ``ModeQueue`` machines (``core.mode_queue``), for readers
and for writers, to the store; the ``WaitQueueRegistry`` has all queues of a ``Locks``
and a timer for them. Nothing here awaits: requests are handed to the store and replies
come as callbacks, so that no cancellation can interrupt a change of state half-way.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import random
from typing import TYPE_CHECKING, Any, Literal, get_args

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import (
    Acquire,
    Answer,
    Claim,
    Command,
    Granted,
    NotHeld,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.timing import MICROS, MIN_MARGIN, PollPolicy
from aiorwlock_remote.core.uncertainty import is_uncertain, may_be_repeated
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable, TooManyWaiters
from aiorwlock_remote.logs import log_event

if TYPE_CHECKING:
    from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
    from aiorwlock_remote.runtime.store_client import StoreClient

_WRITE = Mode.WRITE
WakeCause = Literal["message", "pushed", "timer", "poll"]
"""Why a waiter asked again, or entered.

``message``: the store sent a wake-up. ``pushed``: the waiter entered by a message of
the store. ``timer``: a lease in the way was to end. ``poll``: the poll interval was
over.
"""
WAKE_CAUSES: tuple[WakeCause, ...] = get_args(WakeCause)

MAX_IDLE_QUEUES = 1024
"""Number of queues, and of alarms, after which those without a waiter are dropped."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


@dataclass(slots=True, eq=False)
class TaskWaiter(Waiter):
    """A task that waits for one lock, until ``ready`` is done. Then ``grant`` is set,
    or ``error``: why the task does not get the lock. ``lease``: the task's, from when
    it runs with its grant.
    """

    ready: Pending[None] = field(default_factory=Pending[None])
    error: BaseException | None = None
    lease: Lease | None = None


class Attempt(Pending[None]):
    """One task's wait for a lock; done when the task has to go on.

    If no other task of this process is at the resource, the task joins no queue until
    the store has answered: nearly always with the grant. If anything else happens
    first, ``waiter`` is made and joins its queue, as if it had joined when the request
    was sent.

    Attributes:
        claim: what the task asks for.
        request: its options.
        since: local monotonic time (s) at which the wait began.
        until: as ``Waiter.until``.
        grant: the store's answer to a task that is in no queue, if it is the grant.
        waiter: the task in its queue; None: it has not joined.
    """

    __slots__ = ("claim", "grant", "request", "since", "until", "waiter")

    def __init__(
        self, claim: Claim, request: AcquireRequest, since: float, until: float
    ) -> None:
        # Pending's own fields, as in ``Call``: this is the hot path.
        self._done = False
        self._value = None
        self.error: BaseException | None = None
        self._callbacks = None
        self._future = None
        self.claim: Claim = claim
        self.request: AcquireRequest = request
        self.since: float = since
        self.until: float = until
        self.grant: Grant | None = None
        self.waiter: TaskWaiter | None = None

    def new_waiter(self) -> TaskWaiter:
        """Make ``waiter``, which is to join a queue; return it."""
        request, margin = self.request, self.request.terms.margin
        self.waiter = TaskWaiter(
            self.claim,
            request.policy,
            request.max_waiters,
            until=self.until,
            margin=MIN_MARGIN if margin is None else margin,
            limit=request.limit,
            ready=self,
        )
        return self.waiter


_ANSWERS = Granted, Waiting, Refused, NotHeld
_PreparedAcquire = tuple[Acquire | None, Callable[[Claim], Pending[Reply]] | None]
_NOTHING_PREPARED: _PreparedAcquire = None, None
_RELEASE = Release("of each prepared release")  # for what is counted by its class


class WaitQueue:
    """The tasks of this process that wait for one resource, readers and writers.

    Invariants (tests/runtime/test_wait_queue_random_histories.py):

    - A mode with waiters has a request under way, or a time when the next is ``due``,
      or is held back until the reply to the readers' request under way.
    - Whenever ``due`` became earlier, ``set_alarm`` was called, so that the
      ``WaitQueueRegistry`` never wakes a queue later than it is due.
    - Each waiter that joined gets one result or leaves; until then ``waiting`` counts
      it.
    - A ticket that the store may know when its waiter leaves is withdrawn
      (tests/runtime/test_cancellation.py).
    - The request that confirms a pushed grant is handed to the store before its task
      runs, and so before any release (tests/runtime/test_pushed_grants.py).
    - A task that asks alone sends what it would send if it joined, and gets the same
      (tests/runtime/test_asking_alone.py).
    """

    repeats_withdrawals: bool = False
    """Whether a withdrawal of the queue entry alone is repeated if it fails, too."""
    asks_alone: bool = True
    """Whether tasks may ask by ``ask_alone``."""

    def __init__(
        self,
        resource: Resource,
        client: StoreClient,
        set_alarm: Callable[[WaitQueue], None],
        poll_policy: PollPolicy | None = None,
    ) -> None:
        """Make an empty queue. Whenever the queue plans to ask the store again, it
        calls ``set_alarm(self)``, so that ``look`` is called at the time ``due``.
        ``poll_policy``: how often the queue polls; None: as the store wants it.
        """
        self.resource = resource
        self._client = client
        self._clock = client.clock
        self._set_alarm = set_alarm
        poll_policy = poll_policy or client.store.poll_policy
        self._claim_window = poll_policy.claim_window
        # A semaphore has no writers: their queue stays empty.
        shared = Mode.PERMIT if resource.is_semaphore else Mode.READ
        self._readers = ModeQueue(client.client_id, shared, poll_policy, client.delays)
        self._writers = ModeQueue(
            client.client_id, Mode.WRITE, poll_policy, client.delays
        )
        self._modes = (self._readers, self._writers)
        self.unused: bool = self.asks_alone
        """Whether a task may ask by ``ask_alone``: no other one of this process waits,
        or has left something behind."""
        self._alone: Attempt | None = None
        self._watched = False
        self._limit_told = False
        # Kept for the event ``claim_missed`` alone: the local time of the last wake-up,
        # and the grant that the store pushed, if its message let no task in.
        self._woken_at = math.inf
        self._missed: PushedGrant | None = None
        # The confirmation of a grant that may be pushed, and what sends it.
        self._prepared: tuple[Acquire, Callable[[], Pending[Reply]]] | None = None
        # Of each mode, what tasks that ask alone have asked for; None: only once.
        self._prepared_acquires: dict[ModeQueue, _PreparedAcquire] = {}
        # Of what they are granted; None: nothing was acquired twice.
        self._prepared_release: Callable[[str], Pending[Reply]] | None = None

    @property
    def idle(self) -> bool:
        return self._alone is None and self._readers.idle and self._writers.idle

    @property
    def due(self) -> float | None:
        """Local monotonic time of the next request to the store; None: none planned."""
        times = [mode.due for mode in self._modes if mode.due is not None]
        return min(times, default=None)

    @property
    def waiting(self) -> int:
        # Not those whose request is under way after they left.
        queued = len(self._readers.waiters) + len(self._writers.waiters)
        return queued if self._alone is None else 1

    def join(self, waiter: TaskWaiter, mode: Mode) -> None:
        """Add a waiter; send a request, unless one for its mode is under way already.
        Raise ``TooManyWaiters`` if ``max_waiters`` tasks of this process wait already.
        """
        self._join_alone()
        self.unused = False
        # The store counts the waiters of all processes; those of this one are refused
        # here already, without a request.
        limit = waiter.max_waiters
        if limit is not None and self.waiting >= limit > 0:
            raise TooManyWaiters(resource=self.resource.label, limit=limit)
        queue = self._queue(mode)
        # Readers that joined before this writer may have to wait for the reply to a
        # request under way. If it was sent first, it would keep them out, although they
        # came first (FairnessCases.test_in_the_order_of_arrival).
        hold = mode is Mode.WRITE and self._readers.unsent
        self._send(queue, queue.join(waiter, hold=hold))
        if hold and self._writers.held_back:
            self._readers.bar()

    def ask_alone(self, attempt: Attempt) -> None:
        """Send the request of a task that does not join; it is the one that ``join``
        would send. Allowed if the queue is ``unused``.
        """
        self.unused, self._alone = False, attempt
        request, client = attempt.request, self._client
        queue = self._queue(request.mode)
        claim = attempt.claim
        acquire = queue.only_request(
            claim, request.policy, request.max_waiters, request.limit
        )
        send = partial(self._sender(queue, acquire), claim)
        sent = client.step(self.resource, acquire, send)
        client.throttle.begun()
        sent.add_done_callback(partial(self._answered_alone, attempt))

    def _sender(
        self, queue: ModeQueue, acquire: Acquire
    ) -> Callable[[Claim], Pending[Reply]]:
        """Return what sends ``acquire``, but for the claim it is given."""
        known, send = self._prepared_acquires.get(queue, _NOTHING_PREPARED)
        if known is acquire and send is not None:
            return send
        usual = partial(self._send_by_itself, acquire)
        if known is acquire:
            # Most resources are acquired once: only the second time it is prepared.
            store = self._client.store
            send = store.prepared_acquire(self.resource, acquire) or usual
            self._prepared_release = store.prepared_release(self.resource)
        else:
            send = None
        self._prepared_acquires[queue] = acquire, send
        return send or usual

    def _send_by_itself(self, acquire: Acquire, claim: Claim) -> Pending[Reply]:
        command = replace(acquire, claims=(claim,))
        return self._client.store.step(self.resource, command)

    def joined(self, attempt: Attempt) -> TaskWaiter:
        """Return the waiter of an attempt; if it asked alone, it joins its queue now.
        Also after its grant has come, if its task cannot use that.
        """
        if attempt.waiter is None and attempt.grant is None:
            self._join_alone()
        if attempt.waiter is None:  # the next task may ask alone already
            waiter = attempt.new_waiter()
            waiter.grant, waiter.sent_at = attempt.grant, attempt.since
        assert attempt.waiter is not None
        return attempt.waiter

    def leave(self, waiter: TaskWaiter, mode: Mode) -> None:
        """Remove a waiter, and give back what the store may have granted to it. Call
        this also for a task that is cancelled after its grant came: else the grant
        would stay without an owner (test_cancellation.py).
        """
        self._join_alone()
        if waiter.grant is not None:
            self._retried(self.release(waiter.ticket), waiter).log_failure()
        elif is_uncertain(waiter.error):
            self.withdraw(waiter, mode).log_failure()
        else:
            withdraw = self._queue(mode).leave(waiter)
            if withdraw is not None:
                self._note_waiter("withdrawn", waiter)
                withdrawn = self._step(withdraw)
                if withdraw.tickets or self.repeats_withdrawals:
                    withdrawn = self._retried(withdrawn, waiter)
                withdrawn.log_failure()
        self._unwatch_if_idle()
        self._note_unused()

    def withdraw(self, waiter: TaskWaiter, mode: Mode) -> Pending[Reply]:
        """Withdraw the request of a waiter that failed, as the store may have granted
        it. Return the reply to come; a failed withdrawal is repeated.
        """
        self._join_alone()
        self._note_waiter("withdrawn", waiter)
        keep = bool(self._queue(mode).waiters)
        withdraw = Withdraw(self._client.client_id, mode, (waiter.ticket,), keep=keep)
        return self._retried(self._step(withdraw), waiter)

    def before(self, waiter: TaskWaiter, mode: Mode) -> int:
        """Return how many tasks of this process wait before ``waiter`` in that mode."""
        waiters = self._queue(mode).waiters
        return waiters.index(waiter) if waiter in waiters else 0

    def said(self, waiter: TaskWaiter, mode: Mode) -> Waiting | None:
        """Return the store's last reply to this waiter; None: there was none."""
        return self._queue(mode).last_reply_to(waiter)

    def wake(self, cause: WakeCause = "message") -> None:
        """Request the lock for readers and writers that wait, because it may be free
        now. ``cause`` is the key under which ``Statistics.wakeups`` counts this call.
        """
        self._join_alone()
        for queue in self._modes:
            # Also without a queue entry: the wake-up may overtake the answer that
            # confirms the entry, and would be lost then.
            if not queue.idle:
                self._note_wake(queue, cause)
                self._send(queue, queue.wake())

    def pushed(self, message: PushedGrant) -> None:
        """Let the first writer in if ``message`` proves its grant and is in time; else
        take the message as a wake-up.
        """
        self._join_alone()
        queue = self._writers
        effects = queue.pushed(message, self._clock.now())
        if effects is None:
            if log.isEnabledFor(logging.DEBUG):
                first = next(iter(queue.waiters), None)
                if first is not None and message.proves(first.ticket):
                    self._missed = message
            self.wake()
            return
        self._note_wake(queue, "pushed")
        self._apply(queue, effects)

    def _prepare(self) -> None:
        # While the task waits there is time to encode the request that follows the
        # message (tests/runtime/test_pushed_grants.py).
        confirmation, self._prepared = self._writers.confirmation(), None
        if confirmation is not None:
            send = self._client.store.prepared(self.resource, confirmation)
            self._prepared = confirmation, send

    def forget_prepared(self) -> None:
        """Drop the requests that were encoded for the store's own connection."""
        self._prepared = self._prepared_release = None
        self._prepared_acquires.clear()

    def look(self) -> None:
        """Request the lock in every mode whose next poll is due."""
        # In case a wake-up was lost, or the store sends none: an answer also says when
        # to ask again.
        now = self._clock.now()
        for queue in self._modes:
            if queue.due is not None and queue.due <= now:
                self._note_wake(queue, "poll")
                self._send(queue, queue.ask())

    def release(self, ticket: str, mode: Mode | None = None) -> Pending[Reply]:
        """Send the release of the grant of ``ticket``; return the reply to come. The
        same request asks for the lock for the next waiters of this process.
        """
        # Without a queue entry there is no waiter to serve in the same request: those
        # that are to ask for the first time have their own request under way.
        if not self._watched:
            send = self._prepared_release
            if send is None or mode is not None:
                return self._client.step(self.resource, Release(ticket, mode))
            return self._client.step(self.resource, _RELEASE, partial(send, ticket))
        carried = [
            (queue, acquire)
            for queue in self._modes
            if queue.watching and (acquire := queue.ask()) is not None
        ]
        sent_at = self._clock.now()
        command = Release(ticket, mode, tuple(acquire for _, acquire in carried))
        pending = self._client.step(self.resource, command)
        pending.add_done_callback(
            partial(self._released, [queue for queue, _ in carried], sent_at)
        )
        return pending

    def _retried(self, ended: Pending[Reply], waiter: TaskWaiter) -> Pending[Reply]:
        # The entry is kept: by the time of a retry it may be that of other waiters.
        # The mode is that of the entry, so any mode will do.
        withdraw = Withdraw(
            self._client.client_id, Mode.READ, (waiter.ticket,), keep=True
        )
        retry = partial(self._step, withdraw)
        lease = waiter.claim.seconds
        return self._client.cleanup.retry_if_failed(ended, self.resource, retry, lease)

    def _step(
        self, command: Command, send: Callable[[], Pending[Reply]] | None = None
    ) -> Pending[Reply]:
        return self._client.step(self.resource, command, send)

    def _queue(self, mode: Mode) -> ModeQueue:
        return self._writers if mode is _WRITE else self._readers

    def _released(
        self, queues: list[ModeQueue], sent_at: float, pending: Pending[Reply]
    ) -> None:
        if pending.error is not None:
            for queue in queues:
                self._failed(queue, pending.error)
            return
        reply = pending.result()
        assert isinstance(reply, Released)
        for queue, answer in zip(queues, reply.then, strict=True):
            self._answered(queue, answer, sent_at)

    def _answered_alone(self, attempt: Attempt, sent: Pending[Reply]) -> None:
        self._client.throttle.answered(attempt.since)
        if attempt.waiter is None and sent.error is None:
            grant = _only_grant(sent.result())
            if grant is not None and grant.ticket == attempt.claim.ticket:
                self._client.delays.note(self._clock.now() - attempt.since)
                self._alone, self.unused = None, True
                attempt.grant = grant
                attempt.set_result(None)
                return
        self._join_alone()
        self._received(self._queue(attempt.request.mode), attempt.since, sent)

    def _join_alone(self) -> None:
        attempt, self._alone = self._alone, None
        if attempt is not None:
            waiter = attempt.new_waiter()
            # Returns the acquire that has been sent already.
            self._queue(attempt.request.mode).join(waiter)

    def _note_unused(self) -> None:
        self.unused = (
            self.asks_alone
            and self._alone is None
            and self._readers.unused
            and self._writers.unused
        )

    def _send(self, queue: ModeQueue, command: Acquire | Withdraw | None) -> None:
        if command is None:
            return
        sent_at = self._clock.now()
        prepared, self._prepared = self._prepared, None
        send = prepared[1] if prepared is not None and prepared[0] is command else None
        pending = self._step(command, send)
        if isinstance(command, Acquire):
            self._client.throttle.sent(pending)
            pending.add_done_callback(partial(self._received, queue, sent_at))
        else:
            pending.log_failure()

    def _received(
        self, queue: ModeQueue, sent_at: float, pending: Pending[Reply]
    ) -> None:
        error = pending.error
        if error is None:
            reply = pending.result()
            assert isinstance(reply, _ANSWERS)
            self._answered(queue, reply, sent_at)
        else:
            self._failed(queue, error)

    def _answered(
        self, queue: ModeQueue, answer: Answer | NotHeld, sent_at: float
    ) -> None:
        now, debug = self._clock.now(), log.isEnabledFor(logging.DEBUG)
        had_entry = debug and queue.watching
        effects = queue.answered(answer, sent_at, now, random())
        if debug:
            self._note_answer(queue, answer, now, had_entry=had_entry)
        if isinstance(answer, Waiting) and answer.limit:
            self._tell_limit(queue, answer.limit)
        for waiter in effects.turned_away:
            assert isinstance(waiter, TaskWaiter)
            limit = waiter.max_waiters or 0
            waiter.error = TooManyWaiters(resource=self.resource.label, limit=limit)
        self._apply(queue, effects)
        if queue is self._readers:
            self._let_writers_follow()
        elif isinstance(answer, Waiting):
            self._prepare()

    def _tell_limit(self, queue: ModeQueue, limit: int) -> None:
        own = max((waiter.limit for waiter in queue.waiters), default=0)
        if limit < own and not self._limit_told:
            self._limit_told = True
            where = self.resource.label
            log_event(log, "limits_differ", resource=where, limit=limit, own=own)

    def _failed(self, queue: ModeQueue, error: BaseException) -> None:
        if not isinstance(error, BackendUnavailable) or error.replicas is not None:
            # Asking again would not help (a damaged record, too few replicas): turn
            # away all waiters, also those with an entry in the store's queue.
            for waiter in queue.waiters:
                waiter.replied = False
        repeat = may_be_repeated(error)
        effects = queue.failed(self._clock.now(), random(), repeat=repeat)
        if queue.due is not None:
            self._client.requests_retried += 1
        for waiter in effects.turned_away:
            assert isinstance(waiter, TaskWaiter)
            waiter.error = error
        self._apply(queue, effects)
        if queue is self._readers:
            self._let_writers_follow()

    def _let_writers_follow(self) -> None:
        # In the order of arrival: ``_apply`` has sent the readers that joined before.
        if self._writers.held_back:
            self._send(self._writers, self._writers.ask())
        self._send(self._readers, self._readers.lift())

    def _apply(self, queue: ModeQueue, effects: Effects) -> None:
        for decided in (effects.served, effects.turned_away):
            for waiter in decided:
                assert isinstance(waiter, TaskWaiter)
                if not waiter.ready.done():
                    waiter.ready.set_result(None)
        if effects.confirmed is not None or effects.lost is not None:
            self._confirmed(effects)
        if effects.send is not None:
            self._send(queue, effects.send)
        if queue.due is not None:
            self._set_alarm(self)
        self._watch_if_placed(queue)
        if not queue.waiters:
            self._note_unused()

    def _confirmed(self, effects: Effects) -> None:
        """Tell the lease of a task that entered by a message what the store says."""
        if effects.lost is None:
            waiter = effects.confirmed
            assert isinstance(waiter, TaskWaiter)
            # Without a lease yet, the task makes one of the confirmed grant.
            if waiter.lease is not None:
                waiter.lease.renewed(waiter.sent_at, waiter.claim.seconds)
            self._note_waiter("push_confirmed", waiter)
            return
        waiter, reason = effects.lost
        assert isinstance(waiter, TaskWaiter)
        self._note_waiter("push_lost", waiter)
        if waiter.lease is None:
            waiter.ends = -math.inf  # the task has not run: it asks again
        else:
            waiter.lease.gone(reason)
        if effects.stray:
            self._retried(self.release(waiter.ticket), waiter).log_failure()

    def _watch_if_placed(self, queue: ModeQueue) -> None:
        # The subscription follows the entry: the store looks once more when it begins,
        # so that a change between answer and subscription is not missed.
        if self._watched:
            self._unwatch_if_idle()
        elif queue.watching:
            self._watched = True
            self._client.store.watch(self.resource)

    def _unwatch_if_idle(self) -> None:
        if self._watched and self.idle:
            self._watched, self._prepared = False, None
            self._client.store.unwatch(self.resource)

    def _note_wake(self, queue: ModeQueue, cause: WakeCause) -> None:
        self._client.count_wake(cause)
        if log.isEnabledFor(logging.DEBUG):
            self._woken_at = self._clock.now()
            self._log("woken", queue, cause=cause)

    def _note_answer(
        self,
        queue: ModeQueue,
        answer: Answer | NotHeld,
        now: float,
        *,
        had_entry: bool,
    ) -> None:
        late, self._woken_at = now - self._woken_at, math.inf
        missed, self._missed = self._missed, None
        if isinstance(answer, Waiting):
            # By the store's clock: a message that a blocked loop read late was late
            # before this process could measure anything (test_pushed_grants.py).
            if missed is not None and answer.now >= missed.expires:
                late = (answer.now - missed.since) / MICROS
            if late > self._claim_window:
                self._log("claim_missed", queue, seconds=late)
            event = "refused" if had_entry else "queued"
            after = answer.retry_after
            self._log(event, queue, ahead=answer.ahead, retry_after=after)
        elif isinstance(answer, Refused):
            self._log("refused", queue, why=answer.why)

    def _note_waiter(self, event: str, waiter: TaskWaiter) -> None:
        if log.isEnabledFor(logging.DEBUG):
            where, holder = self.resource.label, holder_of(waiter.ticket)
            log_event(log, event, logging.DEBUG, resource=where, holder=holder)

    def _log(self, event: str, queue: ModeQueue, **fields: Any) -> None:  # noqa: ANN401 - as ``log_event``
        log_event(
            log,
            event,
            logging.DEBUG,
            resource=self.resource.label,
            mode=queue.mode,
            client_id=self._client.client_id,
            waiting=len(queue.waiters),
            **fields,
        )


def _only_grant(reply: Reply) -> Grant | None:
    # None unless a task has got what it asked for, just now, and has no queue entry. A
    # grant that is older than its request was made by an earlier one
    # (``ModeQueue.answered``).
    if not isinstance(reply, Granted) or reply.placed or len(reply.grants) != 1:
        return None
    grant = reply.grants[0]
    return grant if grant.since >= reply.now else None


class WakeSignal:
    """Wakes one task that waits for a change of a resource (for ``upgrade``)."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def clear(self) -> None:
        """Ignore earlier calls of ``wake``: the next ``wait`` waits for a new call."""
        self._event = anyio.Event()

    def wake(self) -> None:
        """Wake the task, or let its next ``wait`` return at once."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._event.wait()


class WaitQueueRegistry:
    """The wait queues of one ``Locks``, and the timer that wakes them: when a queue is
    due to ask the store, or when a resource may become free because a lease ends. To be
    used in the event loop's thread.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._clock = client.clock
        self._queues: dict[Resource, WaitQueue] = {}
        self._sweep_at = MAX_IDLE_QUEUES
        self._signals: dict[Resource, dict[WakeSignal, None]] = {}
        # A heap of (due, order, what): equal times must not compare queues.
        self._alarms: list[tuple[float, int, WaitQueue | Resource]] = []
        # The alarm that counts, of those in the heap; that of a queue is never later
        # than its ``due``. The others are skipped when they come up.
        self._armed: dict[WaitQueue | Resource, float] = {}
        self._sweep_alarms_at = MAX_IDLE_QUEUES
        self._order = count()
        self._timer = BackgroundTask(client.loop, self._watch_time)
        self._closed = False

    def queue(self, resource: Resource) -> WaitQueue:
        queue = self._queues.get(resource)
        if queue is None:
            self._sweep()
            queue = WaitQueue(resource, self._client, self._set_alarm)
            self._queues[resource] = queue
        return queue

    def wake(
        self,
        resource: Resource,
        seconds: float,
        pushed: PushedGrant | None = None,
        /,
        *,
        cause: WakeCause = "message",
    ) -> None:
        """Let the waiters of a resource request it in ``seconds`` seconds (0: now).
        The store calls this when the resource may be free, now or after that time.

        Args:
            resource: what may be free.
            seconds: after how long.
            pushed: the grant that the store's message names; None: the message names
                none.
            cause: the key under which ``Statistics.wakeups`` counts this call.
        """
        if self._closed:
            return
        if seconds > 0:
            # In place of an earlier hint, sooner or later: a lease that was to end
            # then may have been released, and the next holder's ends at another time
            # (test_of_several_hints_the_newest_counts).
            self._push(self._clock.now() + seconds, resource)
            return
        for signal in self._signals.get(resource, ()):
            signal.wake()
        queue = self._queues.get(resource)
        if queue is None:
            return
        if pushed is not None:
            queue.pushed(pushed)
        else:
            queue.wake(cause)

    def listen(self, resource: Resource) -> WakeSignal:
        """Return a signal that gets a ``wake()`` whenever ``resource`` may be free."""
        signal = WakeSignal()
        self._signals.setdefault(resource, {})[signal] = None
        self._client.store.watch(resource)
        return signal

    def unlisten(self, resource: Resource, signal: WakeSignal) -> None:
        """Stop waking ``signal``, which ``listen(resource)`` returned."""
        signals = self._signals[resource]
        signals.pop(signal, None)
        if not signals:
            del self._signals[resource]
            if resource not in self._queues or self._queues[resource].idle:
                self._client.store.unwatch(resource)

    def close(self) -> None:
        """Stop sending requests. ``LockAcquirer.close`` wakes the waiting tasks."""
        self.sever()
        self._timer.stop()

    def sever(self) -> None:
        """Stop sending requests, without a call of the event loop."""
        self._closed = True
        for queue in self._queues.values():
            queue.forget_prepared()

    def _sweep(self) -> None:
        if len(self._queues) >= self._sweep_at:
            self._queues = {r: q for r, q in self._queues.items() if not q.idle}
            # Twice as many as are in use: else thousands of queues in use would be
            # looked through for each new one.
            self._sweep_at = max(MAX_IDLE_QUEUES, 2 * len(self._queues))

    def _set_alarm(self, queue: WaitQueue) -> None:
        due = queue.due
        if due is None:
            return
        if due < self._armed.get(queue, math.inf):
            self._push(due, queue)
        else:
            # An alarm that is soon enough exists, but its task may have been cancelled
            # from outside (test_whoever_cancels_all_tasks_ends_no_look_out).
            self._timer.wake(by=due)

    def _push(self, due: float, what: WaitQueue | Resource) -> None:
        if len(self._alarms) >= self._sweep_alarms_at:
            self._sweep_alarms()
        self._armed[what] = due
        heapq.heappush(self._alarms, (due, next(self._order), what))
        self._timer.wake(by=due)

    def _sweep_alarms(self) -> None:
        # A lease may end in a day; the tasks that waited for it have left long before.
        self._armed = {w: due for w, due in self._armed.items() if self._awaited(w)}
        self._alarms = [a for a in self._alarms if self._armed.get(a[2]) == a[0]]
        heapq.heapify(self._alarms)
        self._sweep_alarms_at = max(MAX_IDLE_QUEUES, 2 * len(self._alarms))

    def _awaited(self, what: WaitQueue | Resource) -> bool:
        if isinstance(what, WaitQueue):
            return not what.idle
        queue = self._queues.get(what)
        return what in self._signals or (queue is not None and not queue.idle)

    async def _watch_time(self) -> None:
        while self._alarms and not self._closed:
            self._fire()
            if self._alarms:
                await self._timer.sleep_until(self._alarms[0][0])

    def _fire(self) -> None:
        now = self._clock.now()
        for _ in range(len(self._alarms)):  # alarms set meanwhile fire the next time
            if not self._alarms or self._alarms[0][0] > now:
                return
            due, _, what = heapq.heappop(self._alarms)
            if self._armed.get(what) != due:
                continue  # another alarm was set since
            del self._armed[what]
            if isinstance(what, Resource):
                self.wake(what, 0, cause="timer")
            else:
                what.look()
                self._set_alarm(what)  # its other mode may be due later
