"""``lock.in_transaction(…)``: a grant that ends with a transaction of the caller's."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import final

import anyio

from aiorwlock_remote.errors import BackendError, Unsupported
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.single_entry import SingleEntry
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import SupportsTransactions
from aiorwlock_remote.runtime.lease import LeaseState
from aiorwlock_remote.runtime.request import AcquireRequest

LEASE = 5.0
"""Seconds after which a dead holder's lock is free; no live one's ends by it."""
SOONEST, LATEST = 0.002, 0.25
"""Seconds between two looks whether the transaction has ended."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.held")


@final
class InTransaction:
    """Made by ``Mutex.in_transaction``; entered once."""

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        options: Options,
        transaction: object,
    ) -> None:
        """``options``: those of the request."""
        self._session = session
        self._request = request
        self._options = options
        self._transaction = transaction
        self._inside = SingleEntry(
            "in_transaction(…)",
            lambda: f"in_transaction(…) of {request.resource.label}",
        )
        self._grip: HeldState | None = None
        self._held: Held | None = None

    async def __aenter__(self) -> Held:
        with self._inside:
            return await self._join()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._grip is not None
        if not self._session.forked:
            self._session.outlasting[self._grip.lease] = self._over
            self._session.host.spawn(self._outlast)

    async def _join(self) -> Held:
        session, request = self._session, self._request
        session.check()
        store = session.drive.store
        if not isinstance(store, SupportsTransactions):
            raise Unsupported(
                what=f"{request.resource.label}: not in a transaction of this store",
                hint="postgresql:// and mariadb:// can",
            )
        with session.asked(request) as followers:
            await session.may_ask(request.resource)
            lease = await session.doors.acquire(request)
        options = self._options
        self._grip = HeldState(session, lease, options, followers, owned_by_task=False)
        self._held = Held(self._grip)
        try:
            await store.join(request.resource, lease.ticket, self._transaction)
        except BaseException:
            self._grip.give_back()
            raise
        return self._held

    async def _outlast(self) -> None:
        """Release it when the transaction has ended: before, it would be waited for."""
        grip, pause = self._grip, SOONEST
        assert grip is not None
        try:
            while not await self._over():
                await anyio.sleep(pause)
                pause = min(LATEST, 2 * pause)
        except BackendError as exc:
            where = grip.lease.resource.label
            log_event(log, "release_failed", resource=where, error=str(exc))
            grip.give_back()
        finally:
            self._session.outlasting.pop(grip.lease, None)

    async def _over(self) -> bool:
        """Whether the transaction has ended, or the grant; then it is given back."""
        store, grip = self._session.drive.store, self._grip
        assert isinstance(store, SupportsTransactions)
        assert grip is not None
        held = grip.lease.state is LeaseState.HELD
        if held and await store.joined(self._request.resource, grip.lease.ticket):
            return False
        grip.give_back()
        return True
