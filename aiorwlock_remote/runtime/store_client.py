"""``StoreClient``: sends requests to the store; undoes those of cancelled tasks.

Its ``AcquireThrottle`` delays acquire requests if too many are under way.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import anyio

from aiorwlock_remote._util.pending import checkpoint, gather_pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote._util.threads import run_blocking
from aiorwlock_remote.core.commands import (
    Claim,
    Command,
    NotHeld,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant, Requester
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import ReplyDelays
from aiorwlock_remote.core.text import one_line
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import AcquireUncertain, BackendError, BackendUnavailable
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    Pending,
    StoreBase,
    StoreSettings,
)
from aiorwlock_remote.runtime.cleanup import (
    CleanupRetrier,
    InFlightGrants,
    ask_with_retries,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.fork import ForkedStore, disable_in_children
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.wait_queue import (
    WAKE_CAUSES,
    WaitQueueRegistry,
    WakeCause,
)

if TYPE_CHECKING:
    from aiorwlock_remote.runtime.acquirer import LockAcquirer

T = TypeVar("T")

ReplyCallback = Callable[[str, float, BaseException | None], object]
"""``callback(command, seconds, error)``: the name of the command's class, the time from
sending it to its reply, and what it failed with; None: it was answered."""

MAX_TASK_NAMES = 1024
"""Task names for which the ``Requester`` of a request without a reason is cached."""
MAX_TASK_NAME_BYTES = 200
INITIAL_WINDOW = 128
MAX_WINDOW = 512
MIN_WINDOW = 8
"""Most acquire requests under way at a time: at first, and bounds of that number."""
SLOW_REPLY = 1.0
"""Seconds; a reply that takes longer halves the window, each other one adds one."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class AcquireThrottle:
    """Limits the acquire requests under way; other tasks wait for their turn, in order.

    The lease of a grant counts from before its request was sent. If thousands of
    requests were sent at once, the last replies would come when their leases are nearly
    over, and a loop busy with replies would leave the lease keeper's threads no time to
    renew. So the limit (the window) is how many requests the store answers within
    ``SLOW_REPLY`` seconds. It is found by additive increase and multiplicative decrease
    as in TCP's congestion control (RFC 5681); while renewals are late, it is one. Tasks
    with a queue entry send no request and do not count.
    """

    def __init__(self, clock: Clock) -> None:
        self.behind: bool = False
        """Whether renewals are late; set by the lease keeper, from any thread."""
        self._clock = clock
        self._window = INITIAL_WINDOW
        self._halved_at = clock.now()
        self._in_flight = 0
        # Tasks that were let in and have not sent yet: they count as under way, else
        # all that wait would be let in before the first of them runs.
        self._let_in = 0
        self._waiting: dict[Pending[None], None] = {}

    @property
    def full(self) -> bool:
        """Whether the next acquire request has to wait for its turn."""
        most = 1 if self.behind else self._window
        return bool(self._waiting) or self._in_flight + self._let_in >= most

    def sent(self, request: Pending[Any]) -> None:
        """Count ``request``, just sent, as under way until its reply comes."""
        self.begun()
        request.add_done_callback(partial(self.answered, self._clock.now()))

    def begun(self) -> None:
        """Count a request as under way until ``answered`` is called."""
        self._in_flight += 1

    def answered(self, sent_at: float, _: object = None) -> None:
        """Count a request as answered; it was sent at the local time ``sent_at``."""
        self._in_flight -= 1
        now = self._clock.now()
        if now - sent_at <= SLOW_REPLY:
            if self._window < MAX_WINDOW:
                self._window += 1
        elif sent_at >= self._halved_at:
            # Replies to requests sent before the window was halved tell nothing about
            # the new window: halving for each of them would go down to the minimum.
            self._window, self._halved_at = max(MIN_WINDOW, self._window // 2), now
        if self._waiting:
            self.let_in()

    async def turn(self, seconds: float | None) -> None:
        """Return when a request may be sent, or when ``seconds`` (None: no limit) are
        over. The caller must call ``let_in`` once it has sent its request, or will not
        send it. Raise ``Closed`` if the ``Locks`` was closed meanwhile.
        """
        if log.isEnabledFor(logging.DEBUG):
            waiting, window = len(self._waiting), self._window
            event = "throttled"
            log_event(log, event, logging.DEBUG, waiting=waiting, window=window)
        turn: Pending[None] = Pending()
        self._waiting[turn] = None
        # Room may have come since ``full`` was read, as the keeper's thread sets
        # ``behind``, and then no reply need follow that would let this task in.
        self.let_in()
        has_turn = False
        try:
            with anyio.move_on_after(seconds):
                await turn
            has_turn = True
        finally:
            if turn.done() and turn.error is None:
                self._let_in -= 1
            else:
                self._waiting.pop(turn, None)
            if not has_turn:
                # Cancelled: pass the turn on, or the next task would wait for a reply
                # that may never come (test_throttle.py).
                self.let_in()

    def let_in(self) -> None:
        """Wake the tasks that wait in ``turn``, as many as may send a request now."""
        while self._waiting and self._has_room:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self._let_in += 1
            turn.set_result(None)

    def close(self, error: BaseException) -> None:
        """End all waits: ``turn`` raises ``error`` in every waiting task."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            turn.set_exception(error)

    @property
    def _has_room(self) -> bool:
        return self._in_flight + self._let_in < (1 if self.behind else self._window)


class StoreClient:
    """Sends all requests of a ``Locks``, and undoes those of cancelled tasks.

    Invariants:

    - A request is handed to the store before anything is awaited. When its task is
      cancelled, the withdrawal is handed over before the caller sees the cancellation.
      The store carries out requests for one resource in order: so no request is
      shielded, and none leaves a grant behind (tests/runtime/test_cancellation.py
      cancels at every await).
    - A request that failed is withdrawn, unless its error proves that it was not
      carried out (tests/runtime/test_lost_replies.py).
    - Withdrawals and releases that fail are repeated until the lease is over
      (tests/runtime/test_cleanup.py).
    - Closing undoes the requests under way while there is a connection
      (tests/runtime/test_in_flight.py).
    - A forked child process sends nothing (tests/runtime/test_fork.py).

    Waiting is done by ``LockAcquirer``, renewing in time by ``LeaseKeeper``.
    """

    store: StoreBase
    keeper: LeaseKeeper

    def __init__(self, loop: TaskEventLoop, settings: StoreSettings) -> None:
        """Prepare a client without a store: call ``use`` before the first request."""
        self.loop = loop
        self.clock: Clock = loop.clock
        self.client_id: str = settings.client_id
        self.prefix: str = settings.prefix
        self.connect_timeout: float = settings.connect_timeout
        self.in_flight: InFlightGrants = InFlightGrants()
        self.cleanup: CleanupRetrier = CleanupRetrier(loop, self.in_flight)
        self.throttle: AcquireThrottle = AcquireThrottle(loop.clock)
        self.delays: ReplyDelays = ReplyDelays()
        self.queues: WaitQueueRegistry = WaitQueueRegistry(self)
        self.acquirers: WeakKeyDictionary[LockAcquirer, None] = WeakKeyDictionary()
        """The acquirers of this ``Locks``, whose waits end when it is closed."""
        self.requests_sent: int = 0
        self.requests_retried: int = 0
        self.on_reply: ReplyCallback | None = None
        """Called in the event loop when a request has ended; must not raise."""
        self.on_wake: Callable[[WakeCause], object] | None = None
        """Called when a waiter asks again or enters; must not raise."""
        self.wakeups: dict[WakeCause, int] = dict.fromkeys(WAKE_CAUSES, 0)
        self._hostname = socket.gethostname()
        self._pid = os.getpid()  # a forked child sends no claim
        self._without_reason = lru_cache(MAX_TASK_NAMES)(self._requester)

    def use(self, store: StoreBase) -> None:
        """Send all requests to ``store``, which is open, and renew grants there."""
        # Others read the attribute ``store`` anew for each request: ``sever`` replaces
        # the store in a forked child process.
        self.store = store
        self.keeper = LeaseKeeper(store.renewer, self.loop, self.throttle)
        # A server that takes over may not know the newest grants, also those without an
        # end, which the keeper does not watch otherwise.
        if Capability.FAILS_OVER in store.capabilities:
            store.on_failover(self.keeper.renew_all)
            self.keeper.track_endless()
        disable_in_children(self)

    def step(
        self,
        resource: Resource,
        command: Command,
        send: Callable[[], Pending[Reply]] | None = None,
    ) -> Pending[Reply]:
        """Send a command to the store without awaiting; return the reply to come. An
        exception of ``StoreBase.step`` becomes the error of that reply, and is not
        raised: so a caller that sends several requests does not stop half-way.

        ``send``: sends the command in place of ``StoreBase.step``, which has prepared
        it; then only the class of ``command`` counts.
        """
        self.requests_sent += 1
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "request_sent",
                logging.DEBUG,
                resource=resource.label,
                client_id=self.client_id,
                command=type(command).__name__,
            )
        sent_at = self.clock.now() if self.on_reply is not None else None
        sent: Pending[Reply]
        try:
            sent = self.store.step(resource, command) if send is None else send()
        except Exception as exc:  # noqa: BLE001 - handed to the task that awaits it
            sent = Pending()
            sent.set_exception(exc)
        if sent_at is not None:
            name = type(command).__name__
            sent.add_done_callback(partial(self._replied, name, sent_at))
        return sent

    def count_wake(self, cause: WakeCause) -> None:
        """Count that a waiter asks again, or enters, because of ``cause``."""
        self.wakeups[cause] += 1
        if self.on_wake is not None:
            self.on_wake(cause)

    def claim(self, request: AcquireRequest) -> Claim:
        """Return a ``Claim``, what the store needs to make a grant: a new 128-bit
        ticket, the lease that ``request`` asks for, and who asks (the running task).
        """
        reason = request.reason
        return Claim(
            random_id().hex(),
            request.terms.lease_micros,
            self.requester(reason)
            if reason
            else self._without_reason(self.loop.task_name()),
            micros(request.lock_delay) if request.lock_delay else 0,
        )

    def requester(self, reason: str = "") -> Requester:
        """Return host, process id, running task and ``reason``, which the store keeps
        with a grant, to show other processes who holds the lock.
        """
        return self._requester(self.loop.task_name(), reason)

    def release(self, lease: Lease) -> Pending[Reply]:
        """Send the release of a grant; repeat it in the background if it fails.

        The next waiters of this process ask for the lock in the same request. If a
        request under way (``upgrade``) may have moved the grant to another ticket, that
        is released as well.
        """
        if lease.send_release is not None:
            return lease.send_release(lease)
        resource = lease.resource
        queue = self.queues.queue(resource)
        # Through the queue: its next waiters ask in the same request, one round trip
        # sooner than by a request of their own.
        tickets: tuple[str, ...] = (lease.ticket,)
        if not lease.moving:
            released = queue.release(lease.ticket)
        else:
            *before, last = tickets = lease.ticket, *lease.moving
            releases = [self._release(resource, one) for one in before]
            released = gather_pending([*releases, queue.release(last)], _any_held)
        released.add_done_callback(partial(self._released, lease, tickets))
        return released

    def release_in_background(self, lease: Lease) -> None:
        """Send the release of a grant that no caller received; only log a failure."""
        if lease.send_release is not None:
            lease.send_release(lease).log_failure()
            return
        resource, seconds = lease.resource, lease.terms.lease
        retry = partial(self._release, resource, lease.ticket)
        cleanup = self.cleanup
        cleanup.retry_if_failed(retry(), resource, retry, seconds).log_failure()

    async def renew(self, lease: Lease, seconds: float | None) -> Grant | NotHeld:
        """Renew a grant for ``seconds`` from now (None: for ever). Return the renewed
        grant, and extend ``lease``; or ``NotHeld`` if the grant is gone, and lose it.
        """
        # Before the request: a lease counted from the reply would let two processes
        # believe in their grants at once (``runtime/lease.py``).
        sent_at = self.clock.now()
        length = None if seconds is None else micros(seconds)
        reply = await self.request(lease.resource, Renew(((lease.ticket, length),)))
        assert isinstance(reply, Renewed)
        outcome = reply.outcomes[0]
        if isinstance(outcome, NotHeld):
            lease.gone(outcome.reason)
        else:
            endless = outcome.expires is None
            lease.renewed(sent_at, None if endless else seconds)
        return outcome

    async def request(self, resource: Resource, command: Command) -> Reply:
        """Send a command and return its reply. Repeat the command after errors which
        prove that it was not carried out; undo nothing after other errors.
        """
        return await self.answer(partial(self.step, resource, command))

    async def ask(self, resource: Resource, command: Command, undo: Claim) -> Reply:
        """Send a command that may grant the claim ``undo``; return the reply. On an
        error withdraw that claim.

        Raise ``AcquireUncertain`` if it is not known whether the claim was granted,
        ``Closed`` if the ``Locks`` was closed meanwhile, else the store's
        ``BackendError``.
        """
        send = partial(self._step, resource, command)
        withdraw = partial(self.withdraw, resource, undo)
        return await self.obtain(resource, undo, send, withdraw)

    async def obtain(
        self,
        resource: Resource,
        claim: Claim,
        send: Callable[[], Awaitable[T]],
        withdraw: Callable[[], Pending[Any]],
    ) -> T:
        """Return the reply to ``send()``, which may grant ``claim``; after an error
        that leaves this open, and when the ``Locks`` is closed, call ``withdraw()``.
        Raise what ``ask`` raises.
        """
        with self.in_flight.under(lambda: withdraw().log_failure()):
            try:
                reply = await self.answer(send)
                # A store in memory answers at once: a caller that is cancelled
                # already must not get the grant, and others must run.
                await checkpoint()
            except BaseException as exc:
                if is_uncertain(exc):
                    withdrawn = withdraw()
                    if isinstance(exc, Exception):
                        await self.resolve(exc, resource, withdrawn, claim)
                    withdrawn.log_failure()
                raise
        return reply

    def withdraw(
        self,
        resource: Resource,
        claim: Claim,
        *,
        instead_of: str | None = None,
    ) -> Pending[Reply]:
        """Send the withdrawal of a claim, granted or not; repeat it if it fails.

        When the reply has come, the claim holds nothing. ``instead_of`` is the ticket
        of the grant that the claim was to replace, by ``upgrade`` or ``downgrade``:
        that grant, and the wait for an upgrade, end as well.
        """
        moved = () if instead_of is None else (instead_of,)
        tickets = *moved, claim.ticket
        if log.isEnabledFor(logging.DEBUG):
            label, holder = resource.label, holder_of(claim.ticket)
            log_event(log, "withdrawn", logging.DEBUG, resource=label, holder=holder)
        withdrawn = self._withdraw(resource, tickets, instead_of or "")
        retry = partial(self._withdraw, resource, tickets)
        cleanup = self.cleanup
        return cleanup.retry_if_failed(withdrawn, resource, retry, claim.seconds)

    def stop_upgrade(self, resource: Resource, upgrader: str) -> None:
        """Tell the store, without waiting for its reply, that the reader with ticket
        ``upgrader`` no longer waits to become the writer. The reader's grant stays.
        """
        self._withdraw(resource, (), upgrader).log_failure()

    def lease(
        self,
        request: AcquireRequest,
        grant: Grant,
        sent_at: float,
        ends: float | None = None,
    ) -> Lease:
        """Make the ``Lease`` of a new grant; its deadline counts from the local
        monotonic time ``sent_at``, when the request was sent. ``ends``: the deadline of
        a pushed grant that the store has not confirmed.
        """
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "granted",
                logging.DEBUG,
                resource=request.resource.label,
                mode=grant.mode,
                client_id=self.client_id,
                holder=holder_of(grant.ticket),
                fence=grant.fence,
            )
        clock = self.clock
        return Lease(request.resource, grant, request.terms, sent_at, clock, ends)

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what ``ask()`` returns; repeat the call after errors which prove that
        the request was not carried out, for up to ``connect_timeout`` seconds. Raise
        ``Closed`` instead of repeating it if the ``Locks`` was closed meanwhile,
        because nothing would undo a grant that comes later.
        """
        timeout = self.connect_timeout
        return await ask_with_retries(ask, self.clock, timeout, self._before_retry)

    async def resolve(
        self,
        error: BaseException,
        resource: Resource,
        withdrawn: Pending[Any],
        claim: Claim,
        until: float | None = None,
    ) -> None:
        """Wait for ``withdrawn``, the reply to a withdrawal of ``claim``, which was
        sent because the request for ``claim`` failed with ``error``.

        Return if the withdrawal succeeded, so that nothing is held. If it failed, or no
        reply came within ``connect_timeout`` seconds and before the local monotonic
        time ``until`` (None: no such limit), raise ``AcquireUncertain`` if ``error`` is
        ``BackendUnavailable``, else return; the caller then raises ``error``.
        """
        failure: BackendError | None = None
        timeout = self.connect_timeout
        if until is not None:
            timeout = max(0.0, min(timeout, until - self.clock.now()))
        with anyio.move_on_after(timeout):
            try:
                await self.cleanup.outcome(withdrawn)
            except BackendError as exc:
                failure = exc
            else:
                return
        # In the background the withdrawal is repeated; its failure has no other reader.
        withdrawn.log_failure()
        if not isinstance(error, BackendUnavailable):
            return
        raise AcquireUncertain(
            resource=resource.label,
            holder=holder_of(claim.ticket),
            lease=claim.seconds,
        ) from failure

    async def aclose(self) -> None:
        """Stop the lease keeper and close the store, even if this call is cancelled."""
        self.queues.close()
        thread, done = self.keeper.close(), anyio.Event()

        async def finish() -> None:
            try:
                await self.store.aclose()
                if thread is not None:
                    await run_blocking(thread.join)
            finally:
                done.set()

        # A task of its own: a native asyncio cancellation passes the shield, and
        # interrupts only this wait then
        # (test_who_closes_and_is_cancelled_waits_for_the_end).
        self.loop.spawn(finish)
        with anyio.CancelScope(shield=True):
            await done.wait()

    def sever(self) -> None:
        self.store = ForkedStore(self.store)
        self.queues.sever()

    def _requester(self, task: str, reason: str = "") -> Requester:
        name = one_line(task, MAX_TASK_NAME_BYTES)
        return Requester(self._hostname, self._pid, name, reason)

    def _before_retry(self) -> None:
        self.in_flight.check()
        self.requests_retried += 1

    def _replied(self, command: str, sent_at: float, reply: Pending[Reply]) -> None:
        if self.on_reply is not None:
            self.on_reply(command, self.clock.now() - sent_at, reply.error)

    def _step(self, resource: Resource, command: Command) -> Pending[Reply]:
        sent = self.step(resource, command)
        self.throttle.sent(sent)
        return sent

    def _released(
        self,
        lease: Lease,
        tickets: tuple[str, ...],
        released: Pending[Reply],
    ) -> None:
        if released.error is not None:
            retry = partial(self._release_all, lease.resource, tickets)
            self.cleanup.repeat(released, lease.resource, retry, lease.left)

    def _release(self, resource: Resource, ticket: str) -> Pending[Reply]:
        return self.step(resource, Release(ticket))

    def _release_all(
        self, resource: Resource, tickets: Sequence[str]
    ) -> Pending[Reply]:
        releases = [self._release(resource, one) for one in tickets]
        return (
            releases[0] if len(releases) == 1 else gather_pending(releases, _any_held)
        )

    def _withdraw(
        self, resource: Resource, tickets: tuple[str, ...], upgrader: str = ""
    ) -> Pending[Reply]:
        # The mode is that of the queue entry, which is kept: any mode will do.
        client_id, mode = self.client_id, Mode.READ
        withdraw = Withdraw(client_id, mode, tickets, keep=True, upgrader=upgrader)
        return self.step(resource, withdraw)


def _any_held(replies: Sequence[Reply]) -> Reply:
    # A grant that was being moved was held under one of its tickets, and NotHeld under
    # the others: the release has found it if one of them did.
    held = (reply for reply in replies if isinstance(reply, Released) and reply.held)
    return next(held, replies[0])
