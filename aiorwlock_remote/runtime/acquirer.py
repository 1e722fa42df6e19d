"""The attempts of an acquire, the same for a lock and for a mutex of a set.

The doors: takes locks for the tasks of this process, or waits at their gates.

Several grants asked for at once: all, or none.

The line in the log that tells people who is in the way.

Where an acquisition gets its grant from.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Refused, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS
from aiorwlock_remote.core.transition import peek
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import BackendError, Closed, LockError, LockTimeout
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Pending, Snapshot
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.throttle import AcquireThrottle
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue


@dataclass(slots=True)
class _SentAcquire:
    """``pending``: the answer to the last request that ``send`` sent."""

    request: AcquireRequest
    claim: Claim
    send: Callable[[], Pending[Reply]]
    pending: Pending[Reply]


async def try_acquire_all(
    drive: StoreClient, requests: Sequence[AcquireRequest]
) -> list[Lease] | None:
    """A grant of each if all can be had right now, else None; takes no places.

    All is handed to the store before the first answer is awaited. Cancelled, or refused
    in part, what was granted goes back.

    Raises:
        AcquireUncertain: the store never said.
        Closed: the ``Locks`` was closed meanwhile.
        BackendError: the store failed, or no thread can be had to renew them.
    """
    for request in requests:
        drive.keeper.ready(request.terms)
    sent_at = drive.host.clock.now()
    asked = [_send_acquire(drive, request) for request in requests]
    leases: list[Lease] = []
    with drive.closing.under(partial(_withdraw_on_close, drive, asked)):
        try:
            for one in asked:
                reply = await _await_reply(drive, one)
                if isinstance(reply, Granted):
                    leases.append(drive.lease(one.request, reply.grants[0], sent_at))
            await checkpoint()
        except BaseException as exc:
            taken_back = _withdraw_uncertain(drive, asked)
            if isinstance(exc, Exception):
                for one, pending in taken_back:
                    error = one.pending.error or exc
                    await drive.resolve(error, one.request.resource, pending, one.claim)
            for _, pending in taken_back:
                pending.log_failure()
            raise
    if len(leases) == len(asked) and not any(lease.expired() for lease in leases):
        return leases
    for lease in leases:
        drive.release_in_background(lease)
    return None


def _send_acquire(drive: StoreClient, request: AcquireRequest) -> _SentAcquire:
    claim = drive.asking.claim(request)
    command = Acquire((claim,), request.mode, request.policy)
    send = partial(drive.store.step, request.resource, command)
    return _SentAcquire(request, claim, send, send())


async def _await_reply(drive: StoreClient, one: _SentAcquire) -> Reply:
    """The answer to what was sent already, or to one of the next:
    ``StoreClient.answer``.
    """
    sent = False

    async def ask() -> Reply:
        nonlocal sent
        if sent:
            one.pending = one.send()
        sent = True
        return await one.pending

    return await drive.answer(ask)


def _withdraw_uncertain(
    drive: StoreClient, asked: Sequence[_SentAcquire]
) -> list[tuple[_SentAcquire, Pending[Reply]]]:
    """What was granted, or perhaps was."""
    return [
        (one, drive.withdraw(one.request.resource, one.claim))
        for one in asked
        if one.pending.error is None or is_uncertain(one.pending.error)
    ]


def _withdraw_on_close(drive: StoreClient, asked: Sequence[_SentAcquire]) -> None:
    for _, pending in _withdraw_uncertain(drive, asked):
        pending.log_failure()


_ORDINAL_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}  # codespell:ignore nd


def slow_wait_message(
    request: AcquireRequest, seen: Snapshot, gate: str, before: int
) -> str:
    """``waited 5 s for order/42 (write), held 31 s by web-3 pid 71: …; 4th in queue``.

    ``before``: how many tasks of this process wait before this one. The place in the
    queue counts all tasks, of all processes.
    """
    live, foreign = peek(seen.record, seen.seat, seen.now)
    if foreign is not None or seen.guests:
        held = "held by a program that says no more"
    elif live.grants:
        held = _describe_holders(live.grants, seen.now)
    else:
        held = "free just now"
    ahead = before
    for place in live.queue:
        if place.client_id == gate and place.mode is request.mode:
            break
        ahead += place.waiting
    back = seen.set_back // MICROS
    clock = f"; the store's clock was set back by {back} s" if back else ""
    return f"{waited_so_long(request)}, {held}; {_ordinal(ahead + 1)} in queue{clock}"


def waited_so_long(request: AcquireRequest) -> str:
    """Its beginning."""
    label, mode = request.resource.label, request.mode
    return f"waited {request.slow_wait:g} s for {label} ({mode})"


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


log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class BaseAcquirer(ABC):
    """Acquires until a grant came that may be believed, or there is nothing to hope."""

    def __init__(
        self,
        clock: Clock,
        keeper: LeaseKeeper,
        admission: AcquireThrottle,
        patience: float,
    ) -> None:
        """``keeper``: looks after what is granted. ``patience``: see ``_passes``."""
        self._clock = clock
        self.keeper: LeaseKeeper = keeper
        self._admission = admission
        self._patience = patience

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Wait for a grant.

        Raises:
            LockTimeout: not within ``timeout``.
            TooManyWaiters: the queue is full.
            AcquireUncertain: the store never said.
            BackendError: the store failed before there was a place in the queue; or no
                thread can be had that would renew it, and nothing was asked for; or
                what stands in the way (``retry_after``) did not pass in that time.
            Closed: the ``Locks`` was closed meanwhile.
        """
        self.keeper.ready(request.terms)
        timeout = request.timeout
        until = None if timeout is None else self._clock.now() + timeout
        hindrance: BackendError | None = None
        while True:
            try:
                if timeout is not None and timeout <= 0:
                    lease = await self._try(request)
                else:
                    if self._admission.full:
                        left = None if until is None else until - self._clock.now()
                        await self._admission.turn(left)
                    lease = await self._wait(request, until)
            except LockTimeout as exc:
                if hindrance is None or exc.holders:
                    raise
                raise hindrance from None
            except BackendError as exc:
                if until is None and exc.retry_after is not None:
                    until = self._clock.now() + self._patience
                if not await self._passes(exc, until):
                    raise
                hindrance = exc
                continue
            if not lease.expired():
                return lease
            # The loop was blocked, or the store slow, for longer than the lease.
            self._let_go(lease)
            log_event(log, "grant_expired_in_transit", resource=request.resource.label)

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """A grant if it can be had right now; takes no place in the queue."""
        self.keeper.ready(request.terms)
        try:
            return await self._try(request)
        except LockTimeout:
            return None

    async def _passes(self, hindrance: BackendError, until: float | None) -> bool:
        """Wait until it may have passed; False if it will not before ``until``.

        Whoever waits for ever waits for ``connect_timeout``: it may never pass, and
        the store names the cause to nobody else.
        """
        after = hindrance.retry_after
        if after is None or until is None or self._clock.now() + after >= until:
            return False
        await anyio.sleep(after)
        return True

    @abstractmethod
    async def _try(self, request: AcquireRequest) -> Lease:
        """One try, without a place in the queue."""

    @abstractmethod
    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        """Wait until then; None: for ever. ``let_in`` others when it is asked for."""

    @abstractmethod
    def _let_go(self, lease: Lease) -> None:
        """Release what came too late to be believed."""


class LockAcquirer(BaseAcquirer):
    """Takes locks for the tasks of this process, or waits for them."""

    def __init__(self, drive: StoreClient) -> None:
        """Nobody waits yet."""
        super().__init__(
            drive.host.clock, drive.keeper, drive.admission, drive.patience
        )
        self._drive = drive
        self._visitors: dict[TaskWaiter, tuple[WaitQueue, Mode]] = {}

    def close(self, error: BaseException) -> None:
        """End all waiting with ``error``; from now on nothing is handed out."""
        self._admission.close(error)
        for visitor, (gate, mode) in list(self._visitors.items()):
            gate.leave(visitor, mode)
            visitor.grant, visitor.error = None, error
            visitor.decide()

    def _let_go(self, lease: Lease) -> None:
        self._drive.release_in_background(lease)

    async def _try(self, request: AcquireRequest) -> Lease:
        claim = self._drive.asking.claim(request)
        command = Acquire((claim,), request.mode, request.policy)
        sent_at = self._clock.now()
        reply = await self._drive.ask(request.resource, command, claim)
        if isinstance(reply, Granted):
            return self._drive.lease(request, reply.grants[0], sent_at)
        assert isinstance(reply, Refused)
        raise self._timed_out(request, reply.holders, reply.retry_after)

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        gate = self._drive.room.queue(request.resource)
        visitor = TaskWaiter(
            self._drive.asking.claim(request), request.policy, request.max_waiters
        )
        visitor.until = self._clock.now() + self._drive.patience
        if until is not None:
            visitor.until = min(visitor.until, until)
        self._visitors[visitor] = gate, request.mode
        try:
            try:
                gate.join(visitor, request.mode)
            finally:
                self._admission.let_in()
            if visitor.ready.done():
                await checkpoint()
            elif until is None and request.slow_wait is None:
                await visitor.ready
            else:
                left = None if until is None else until - self._clock.now()
                with anyio.move_on_after(left):
                    await self._patiently(visitor, request, gate)
        except BaseException:
            if not isinstance(visitor.error, Closed):
                gate.leave(visitor, request.mode)
            raise
        finally:
            del self._visitors[visitor]
        return await self._outcome(visitor, request, gate, until)

    async def _outcome(
        self,
        visitor: TaskWaiter,
        request: AcquireRequest,
        gate: WaitQueue,
        until: float | None,
    ) -> Lease:
        """Return the grant of a task that waited, or raise what it has instead."""
        if visitor.grant is not None:
            return self._drive.lease(request, visitor.grant, visitor.sent_at)
        if isinstance(visitor.error, Closed):
            raise visitor.error
        if visitor.error is not None:
            if visitor.in_doubt:
                withdrawn = gate.withdraw(visitor, request.mode)
                resource, claim = request.resource, visitor.claim
                error = visitor.error
                await self._drive.resolve(error, resource, withdrawn, claim, until)
            raise visitor.error
        said = gate.said(visitor, request.mode)
        gate.leave(visitor, request.mode)
        if said is None:
            raise self._timed_out(request, (), None, unanswered=True)
        raise self._timed_out(request, said.holders, said.retry_after)

    async def _patiently(
        self, visitor: TaskWaiter, request: AcquireRequest, gate: WaitQueue
    ) -> None:
        if request.slow_wait is not None:
            with anyio.move_on_after(request.slow_wait):
                await visitor.ready
                return
            # On its own: whoever waits is not to wait for this.
            self._drive.host.spawn(partial(self._tell_slow, visitor, request, gate))
        await visitor.ready

    async def _tell_slow(
        self, visitor: TaskWaiter, request: AcquireRequest, gate: WaitQueue
    ) -> None:
        try:
            seen = await self._drive.store.look(request.resource)
        except LockError as exc:
            log_event(log, f"{waited_so_long(request)}: {exc}")
            return
        if not visitor.ready.done():
            before = gate.before(visitor, request.mode)
            line = slow_wait_message(request, seen, self._drive.client_id, before)
            log_event(log, line)

    def _timed_out(
        self,
        request: AcquireRequest,
        holders: tuple[str, ...],
        retry_after: int | None,
        *,
        unanswered: bool = False,
    ) -> LockTimeout:
        return LockTimeout(
            resource=request.resource.label,
            mode=str(request.mode),
            timeout=request.timeout or 0.0,
            holders=holders,
            retry_after=None if retry_after is None else retry_after / 1e6,
            unanswered=unanswered,
        )


class Acquirer(Protocol):
    """Where grants come from: ``LockAcquirer``, or what waits for mutexes of a set."""

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Wait for a grant; as ``BaseAcquirer.acquire``."""

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """A grant if it can be had right now."""


class AcquireAbandoned(Exception):
    """Nobody wants the lock any more; it is not held."""


class AbandonableAcquirer:
    """Waits for a grant only as long as somebody wants it."""

    def __init__(
        self,
        source: Acquirer,
        drive: StoreClient,
        over: Callable[[], Awaitable[object]],
    ) -> None:
        """``over`` returns when nobody wants it any more; it may be cancelled."""
        self._source = source
        self._drive = drive
        self._over = over

    async def acquire(self, request: AcquireRequest) -> Lease:
        """A grant; cancelled or not wanted, it leaves nothing behind.

        Raises:
            NotWanted: ``over`` returned first.
            LockError: as the source does.
        """
        lease: Lease | None = None
        error: Exception | None = None

        async def watch() -> None:
            await self._over()
            tasks.cancel_scope.cancel()

        def let_go() -> None:
            if lease is not None:
                self._drive.release(lease).log_failure()

        try:
            with self._drive.closing.under(let_go):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watch)
                    try:
                        lease = await self._source.acquire(request)
                    except Exception as exc:  # noqa: BLE001 - raised below, no group
                        error = exc
                    tasks.cancel_scope.cancel()
        except Closed:
            raise
        except BaseException:
            let_go()
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # this frame is in its traceback
        if lease is None:
            raise AcquireAbandoned
        return lease

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """A grant if it can be had right now."""
        return await self._source.try_acquire(request)
