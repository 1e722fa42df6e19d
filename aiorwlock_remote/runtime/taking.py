"""The attempts of an acquire, the same for a lock and for a mutex of a set."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import anyio

from aiorwlock_remote.errors import BackendError, LockTimeout
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import Keeper
from aiorwlock_remote.runtime.request import Request
from aiorwlock_remote.runtime.throttle import Admission

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class Taking(ABC):
    """Acquires until a grant came that may be believed, or there is nothing to hope."""

    def __init__(
        self, clock: Clock, keeper: Keeper, admission: Admission, patience: float
    ) -> None:
        """``keeper``: looks after what is granted. ``patience``: see ``_passes``."""
        self._clock = clock
        self.keeper: Keeper = keeper
        self._admission = admission
        self._patience = patience

    async def acquire(self, request: Request) -> Lease:
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
            log_event(log, "late", resource=request.resource.label)

    async def try_acquire(self, request: Request) -> Lease | None:
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
    async def _try(self, request: Request) -> Lease:
        """One try, without a place in the queue."""

    @abstractmethod
    async def _wait(self, request: Request, until: float | None) -> Lease:
        """Wait until then; None: for ever. ``let_in`` others when it is asked for."""

    @abstractmethod
    def _let_go(self, lease: Lease) -> None:
        """Release what came too late to be believed."""
