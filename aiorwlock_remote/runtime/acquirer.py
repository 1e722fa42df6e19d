"""The attempts of an acquire, the same for a lock and for a mutex of a set.

The doors: takes locks for the tasks of this process, or waits at their gates.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import partial

import anyio

from aiorwlock_remote._util.pending import checkpoint
from aiorwlock_remote.core.commands import Acquire, Granted, Refused
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendError, Closed, LockError, LockTimeout
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.slow_wait import slow_line, waited
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.throttle import AcquireThrottle
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue

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
            log_event(log, f"{waited(request)}: {exc}")
            return
        if not visitor.ready.done():
            before = gate.before(visitor, request.mode)
            line = slow_line(request, seen, self._drive.client_id, before)
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
