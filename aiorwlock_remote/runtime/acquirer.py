"""Acquiring locks: the loop of attempts behind one ``acquire()``.

``LockAcquirer`` gets locks for the tasks of this process, which wait in a
``WaitQueue``. ``try_acquire_all`` tries several locks at once, and ``obtain_unless``
ends a wait on a condition.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import anyio

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Refused, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.transition import peek
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import BackendError, Closed, LockError, LockTimeout
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Pending, Snapshot
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import Attempt, TaskWaiter, WaitQueue

Obtain = Callable[[AcquireRequest], Awaitable[Lease]]
"""Waits for the grant of a request, with the errors of ``LockAcquirer.acquire``."""

_ORDINAL_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore nd

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class LockAcquirer:
    """Gets locks for the tasks of this process: asks the store again and again until a
    request is granted or fails.

    A subclass has another queue in which tasks wait (``_queue``), another request
    without a queue entry (``_ask``), and another lease of a grant (``_lease_of``):
    ``SetAcquirer``, for the mutexes of a ``MutexSet``. Or it has its own ways to ask
    the store once (``_try``) and to let a task wait (``_wait``): ``RowAcquirer``.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._clock = client.clock
        self._waiting: dict[Attempt, WaitQueue] = {}
        client.acquirers[self] = None

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Wait for a grant; return its lease. The caller has to start its renewals.

        If the caller is cancelled, no grant and no queue entry remain.

        Raises:
            LockTimeout: not obtained within ``timeout`` seconds.
            TooManyWaiters: the queue is full.
            AcquireUncertain: it is not known whether the store has granted the lock.
            BackendError: the store failed before it had a queue entry of this process;
                or no thread could be started to renew, and nothing was sent; or a
                temporary error (one with ``retry_after``) recurred until the timeout.
            Closed: the ``Locks`` was closed meanwhile.
        """
        client, throttle = self._client, self._client.throttle
        # Before the request: a grant that could not be renewed is not asked for
        # (test_nothing_is_asked_for_that_could_not_be_kept).
        client.keeper.ready(request.terms)
        timeout = request.timeout
        until = None if timeout is None else self._clock.now() + timeout
        obstacle: BackendError | None = None
        while True:
            try:
                if timeout is not None and timeout <= 0:
                    lease = await self._try(request)
                else:
                    if throttle.full:
                        left = None if until is None else until - self._clock.now()
                        await throttle.turn(left)
                    lease = await self._wait(request, until)
            except LockTimeout as exc:
                # If the obstacle went away and another holder came, the holder is the
                # reason (test_a_holder_that_came_meanwhile_is_named).
                if obstacle is None or exc.holders:
                    raise
                raise obstacle from None
            except BackendError as exc:
                if until is None and exc.retry_after is not None:
                    # Without a timeout the wait for an obstacle ends as well: it may
                    # never go away, and only this error names it.
                    until = self._clock.now() + self._client.connect_timeout
                if not await self._passes(exc, until):
                    raise
                obstacle = exc
                continue
            if not lease.expired():
                return lease
            # The loop was blocked, or the store slow, for longer than the lease: the
            # caller must not begin with a grant that others may have by now.
            client.release_in_background(lease)
            log_event(log, "grant_expired_in_transit", resource=request.resource.label)

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """Return a lease if the lock is free now, else None. No entry is queued."""
        self._client.keeper.ready(request.terms)
        try:
            return await self._try(request)
        except LockTimeout:
            return None

    def timed_out(
        self,
        request: AcquireRequest,
        holders: tuple[str, ...] = (),
        retry_after: int | None = None,
        *,
        unanswered: bool = False,
    ) -> LockTimeout:
        """Return the ``LockTimeout`` of ``request``. ``holders`` describes the grants
        that prevented it, ``retry_after`` is in how many microseconds the first of them
        ends (None: not known). ``unanswered``: the store never replied.
        """
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "timed_out",
                logging.DEBUG,
                resource=request.resource.label,
                mode=request.mode,
                timeout=request.timeout,
                holders="; ".join(holders),
            )
        return LockTimeout(
            resource=request.resource.label,
            mode=str(request.mode),
            timeout=request.timeout or 0.0,
            holders=holders,
            retry_after=None if retry_after is None else retry_after / 1e6,
            unanswered=unanswered,
        )

    async def _passes(self, obstacle: BackendError, until: float | None) -> bool:
        after = obstacle.retry_after
        if after is None or until is None or self._clock.now() + after >= until:
            return False
        await anyio.sleep(after)
        return True

    def close(self, error: BaseException) -> None:
        """End every wait: ``acquire`` raises ``error`` in the waiting tasks."""
        self._client.throttle.close(error)
        for attempt, queue in list(self._waiting.items()):
            # A grant that came in this very turn is released by ``leave``; its task
            # has not run yet and must not use it.
            waiter = queue.joined(attempt)
            queue.leave(waiter, attempt.request.mode)
            waiter.grant, waiter.error = None, error
            if not waiter.ready.done():
                waiter.ready.set_result(None)

    def waiters(self) -> Iterable[tuple[Mode, float]]:
        """Return mode and start (local monotonic seconds) of each task's wait."""
        return [(one.request.mode, one.since) for one in self._waiting]

    async def _try(self, request: AcquireRequest) -> Lease:
        claim = self._client.claim(request)
        sent_at = self._clock.now()
        reply = await self._ask(request, claim)
        if isinstance(reply, Granted):
            return self._lease_of(request, reply.grants[0], sent_at)
        assert isinstance(reply, Refused)
        if log.isEnabledFor(logging.DEBUG):
            where, why = request.resource.label, reply.why
            log_event(log, "refused", logging.DEBUG, resource=where, why=why)
        raise self.timed_out(request, reply.holders, reply.retry_after)

    def _queue(self, resource: Resource) -> WaitQueue:
        return self._client.queues.queue(resource)

    async def _ask(self, request: AcquireRequest, claim: Claim) -> Reply:
        command = _attempt(request, claim)
        return await self._client.ask(request.resource, command, claim)

    def _lease_of(
        self,
        request: AcquireRequest,
        grant: Grant,
        sent_at: float,
        ends: float | None = None,
    ) -> Lease:
        return self._client.lease(request, grant, sent_at, ends)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        client, now = self._client, self._clock.now()
        queue, mode = self._queue(request.resource), request.mode
        retry_until = now + client.connect_timeout
        if until is not None and until < retry_until:
            retry_until = until
        attempt = Attempt(client.claim(request), request, now, retry_until)
        self._waiting[attempt] = queue
        try:
            if queue.unused:
                queue.ask_alone(attempt)
            else:
                try:
                    queue.join(attempt.new_waiter(), mode)
                finally:
                    # Also if nothing was sent: the turn belongs to the next task then
                    # (test_who_needs_no_request_lets_the_next_one_in).
                    client.throttle.let_in()
            if attempt.done():
                # A store in memory has answered at once. Other tasks must run all the
                # same, or a loop that takes a free lock again and again starves them.
                await checkpoint()
            elif until is None and request.slow_wait is None:
                await attempt
            else:
                left = None if until is None else until - self._clock.now()
                with anyio.move_on_after(left):
                    await self._await_ready(attempt, queue)
        except BaseException:
            waiter = queue.joined(attempt)
            # After ``close`` the waiter has left the queue already.
            if not isinstance(waiter.error, Closed):
                queue.leave(waiter, mode)
            raise
        finally:
            del self._waiting[attempt]
        if attempt.waiter is None and attempt.grant is not None:
            return self._lease_of(request, attempt.grant, now)
        waiter = queue.joined(attempt)
        if waiter.grant is None:
            await self._fail(waiter, request, queue, until)
        lease = waiter.lease = self._lease_of(
            request, waiter.grant, waiter.sent_at, waiter.ends
        )
        return lease

    async def _fail(
        self,
        waiter: TaskWaiter,
        request: AcquireRequest,
        queue: WaitQueue,
        until: float | None,
    ) -> NoReturn:
        if isinstance(waiter.error, Closed):
            raise waiter.error
        if waiter.error is not None:
            # The store may have granted although it did not answer: the error goes to
            # the caller when the withdrawal has been carried out, or is
            # ``AcquireUncertain`` (test_lost_answer_is_taken_back).
            if is_uncertain(waiter.error):
                withdrawn = queue.withdraw(waiter, request.mode)
                resource, claim = request.resource, waiter.claim
                error = waiter.error
                await self._client.resolve(error, resource, withdrawn, claim, until)
            raise waiter.error
        said = queue.said(waiter, request.mode)
        queue.leave(waiter, request.mode)
        if said is None:
            raise self.timed_out(request, unanswered=True)
        raise self.timed_out(request, said.holders, said.retry_after)

    async def _await_ready(self, attempt: Attempt, queue: WaitQueue) -> None:
        slow_wait = attempt.request.slow_wait
        if slow_wait is not None:
            with anyio.move_on_after(slow_wait):
                await attempt
                return
            # In a task of its own: the lock may come while the store is being looked
            # at, and the caller must not wait for the log.
            self._client.loop.spawn(partial(self._log_slow, attempt, queue))
        await attempt

    async def _log_slow(self, attempt: Attempt, queue: WaitQueue) -> None:
        request = attempt.request
        waited = self._clock.now() - attempt.since
        try:
            seen = await self._client.store.look(request.resource)
        except LockError as exc:
            log_event(log, f"{waited_so_long(request, waited)}: {exc}")
            return
        if not attempt.done():
            before = queue.before(queue.joined(attempt), request.mode)
            client_id = self._client.client_id
            told = slow_wait_message(request, seen, client_id, before, waited)
            log_event(log, told)


class AcquireAbandoned(Exception):
    """Raised by ``Acquisition.unless``: ``over()`` returned first; no lock is held."""


async def obtain_unless(
    obtain: Obtain,
    client: StoreClient,
    over: Callable[[], Awaitable[object]],
    request: AcquireRequest,
) -> Lease:
    """Wait for a grant by ``obtain(request)``, but only until ``over()`` returns.

    ``over()`` runs in a task beside ``obtain``, and is cancelled when that returns. A
    grant that comes after ``over()`` returned is released through ``client``. If the
    caller is cancelled, no grant and no queue entry remain.

    Raises:
        AcquireAbandoned: ``over()`` returned first.
        LockError: the error of ``obtain``, not wrapped in an exception group.
    """
    lease: Lease | None = None
    error: Exception | None = None

    async def watch() -> None:
        await over()
        tasks.cancel_scope.cancel()

    def release() -> None:
        if lease is not None:
            client.release(lease).log_failure()

    try:
        with client.in_flight.under(release):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                try:
                    lease = await obtain(request)
                except Exception as exc:  # noqa: BLE001 - raised below, in no group
                    error = exc
                tasks.cancel_scope.cancel()
    except Closed:  # ``release`` was called, if there was a grant
        raise
    except BaseException:
        release()
        raise
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame: a cycle
    if lease is None:
        raise AcquireAbandoned
    return lease


@dataclass(slots=True)
class _SentAcquire:
    request: AcquireRequest
    claim: Claim
    send: Callable[[], Pending[Reply]]
    pending: Pending[Reply]


async def try_acquire_all(
    client: StoreClient, requests: Sequence[AcquireRequest]
) -> list[Lease] | None:
    """Return a lease for each request if all these locks are free now, else None.

    All requests are sent before the first answer is awaited, without queue entries. If
    one is refused, or the caller is cancelled, the other grants are given back.

    Raises:
        AcquireUncertain: it is not known whether the store has granted the locks.
        Closed: the ``Locks`` was closed meanwhile.
        BackendError: the store failed, or no thread could be started to renew.
    """
    for request in requests:
        client.keeper.ready(request.terms)
    # One round trip for all, where the store can pipeline: nothing is awaited before
    # the last request is sent.
    sent_at = client.clock.now()
    sent = [_send_acquire(client, request) for request in requests]
    leases: list[Lease] = []
    with client.in_flight.under(partial(_withdraw_on_close, client, sent)):
        try:
            for one in sent:
                reply = await _await_reply(client, one)
                if isinstance(reply, Granted):
                    leases.append(client.lease(one.request, reply.grants[0], sent_at))
            await checkpoint()
        except BaseException as exc:
            withdrawn = _withdraw_uncertain(client, sent)
            if isinstance(exc, Exception):
                for one, pending in withdrawn:
                    error = one.pending.error or exc
                    await client.resolve(
                        error, one.request.resource, pending, one.claim
                    )
            for _, pending in withdrawn:
                pending.log_failure()
            raise
    if len(leases) == len(sent) and not any(lease.expired() for lease in leases):
        return leases
    for lease in leases:
        client.release_in_background(lease)
    return None


def _attempt(request: AcquireRequest, claim: Claim) -> Acquire:
    # Without a queue entry.
    return Acquire((claim,), request.mode, request.policy, limit=request.limit)


def _send_acquire(client: StoreClient, request: AcquireRequest) -> _SentAcquire:
    claim = client.claim(request)
    command = _attempt(request, claim)
    send = partial(client.step, request.resource, command)
    return _SentAcquire(request, claim, send, send())


async def _await_reply(client: StoreClient, one: _SentAcquire) -> Reply:
    first = True

    async def ask() -> Reply:
        nonlocal first
        if not first:
            one.pending = one.send()
        first = False
        return await one.pending

    return await client.answer(ask)


def _withdraw_uncertain(
    client: StoreClient, sent: Sequence[_SentAcquire]
) -> list[tuple[_SentAcquire, Pending[Reply]]]:
    return [
        (one, client.withdraw(one.request.resource, one.claim))
        for one in sent
        if one.pending.error is None or is_uncertain(one.pending.error)
    ]


def _withdraw_on_close(client: StoreClient, sent: Sequence[_SentAcquire]) -> None:
    for _, pending in _withdraw_uncertain(client, sent):
        pending.log_failure()


def slow_wait_message(
    request: AcquireRequest,
    seen: Snapshot,
    client_id: str,
    before: int,
    waited: float,
) -> str:
    """Return the log text that says who holds a lock for which a task waits.

    ``waited 5 s for order/42 (write), held 31 s by web-3 pid 71: …; 4th in queue``.

    ``request`` is what the task waits for, ``seen`` the state of the resource in the
    store, where the queue entry of this ``Locks`` has the id ``client_id``. ``before``
    is how many tasks of this process wait before this one; the place in the text counts
    the tasks of all processes.
    """
    live, foreign = peek(
        *(seen.record, seen.seat, seen.now), semaphore=request.resource.is_semaphore
    )
    if foreign is not None or seen.guests:
        held = "held by a program that gives no details"
    elif live.grants:
        held = _describe_holders(live.grants, seen.now)
    else:
        held = "free just now"
    ahead = before
    for entry in live.queue:
        if entry.client_id == client_id and entry.mode is request.mode:
            break
        ahead += entry.waiting
    back = seen.set_back // MICROS
    clock = f"; the store's clock was set back by {back} s" if back else ""
    position = _ordinal(ahead + 1)
    start = waited_so_long(request, waited)
    return f"{start}, {held}; {position} in queue{clock}"


def waited_so_long(request: AcquireRequest, waited: float) -> str:
    """Return how log texts of waits begin: ``waited 5 s for order/42 (write)``.

    ``waited``: seconds, which are more than ``slow_wait`` if the loop was blocked.
    """
    label, mode = request.resource.label, request.mode
    seconds = max(request.slow_wait or 0.0, math.floor(10 * waited) / 10)
    return f"waited {seconds:g} s for {label} ({mode})"


def _describe_holders(grants: tuple[Grant, ...], now: int) -> str:
    first = min(grants, key=lambda grant: grant.since)
    age, who = (now - first.since) // MICROS, first.who
    by = f"{who.host} pid {who.pid}" if who.host else first.holder
    why = f": {who.reason}" if who.reason else ""
    if len(grants) == 1:
        return f"held {age} s by {by}{why}"
    return f"held by {len(grants)}, for {age} s by {by}{why}"


def _ordinal(number: int) -> str:
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{_ORDINAL_SUFFIXES.get(last, 'th')}"
