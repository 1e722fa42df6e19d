"""All row locks of one loop at one database: who holds which."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.row import RowState
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.row_plans import looking
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import LockError, LockTimeout, WouldDeadlock
from aiorwlock_remote.recipes.row_lock.lease import RowLease, keep, why_gone
from aiorwlock_remote.recipes.row_lock.requests import RowRequests, RunsPlans
from aiorwlock_remote.recipes.row_lock.strategies import (
    LeasedStrategy,
    RowAttempt,
    RowOutcome,
)
from aiorwlock_remote.recipes.row_lock.target import Kind, RowTarget
from aiorwlock_remote.recipes.row_lock.wait_queue import RowRequest, RowWaitQueue
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

S = TypeVar("S")


class RowLockManager(Generic[S]):
    """All row locks of one loop at one database."""

    def __init__(
        self,
        carrier: RunsPlans[S],
        host: TaskEventLoop,
        check: Callable[[], None],
        known: set[Kind] | None = None,
    ) -> None:
        """``check``: raises if nothing may be asked. ``known``: see there."""
        self._carrier = carrier
        self._host = host
        self._check = check
        self._pid = os.getpid()
        self._requests = RowRequests(carrier, host, self._freed, known)
        self._waiting = RowWaitQueue(self._requests, host, check)
        self._held: set[RowLease[S]] = set()
        self._mine: weakref.WeakKeyDictionary[Any, dict[Kind, RowLease[S]]]
        self._mine = weakref.WeakKeyDictionary()

    async def acquire(
        self, row: RowTarget[S], mode: Mode, reason: str, timeout: float | None
    ) -> RowLease[S] | RowState:
        """Wait for it, or tell what is in the way when the time is over."""
        self._check()
        task = self._host.current_task()
        mine = self._mine.setdefault(task, {})
        held = mine.get(row.identity)
        if held is not None and held.in_the_way(self.now()):
            theirs = str(held.attempt.mode)
            raise WouldDeadlock(resource=row.label, held_mode=theirs)
        until = None if timeout is None else self._host.clock.now() + timeout
        wish = RowRequest(row, RowAttempt(mode, reason, random_id().hex()), until)
        got = await self._waiting.obtain(wish, wait=timeout != 0)
        if isinstance(got, RowState):
            return got
        got.task = weakref.ref(task)
        self._held.add(got)
        mine[row.identity] = got
        try:
            self._check()
        except LockError:  # closed meanwhile
            self._end(got, None).log_failure()
            raise
        if got.grant is not None:
            self._host.spawn(partial(self._look_after, got))
        return got

    async def obtain(
        self, row: RowTarget[S], mode: Mode, reason: str, timeout: float | None
    ) -> RowLease[S]:
        """Wait for it.

        Raises:
            LockTimeout: not obtained in time.
        """
        got = await self.acquire(row, mode, reason, timeout)
        if isinstance(got, RowLease):
            return got
        raise LockTimeout(
            resource=row.label,
            mode=str(mode),
            timeout=timeout or 0.0,
            holders=(str(got),),
        )

    async def release(
        self, holding: RowLease[S], reason: str | None
    ) -> RowOutcome | None:
        """Give it back; None if that was done before. Cancelling does not stop it."""
        if holding not in self._held:
            return None
        self._check()
        told = self._end(holding, reason)
        with anyio.CancelScope(shield=True):
            try:
                return await told
            except LockError as exc:
                raise holding.row.explained(exc) from exc.__cause__
        raise AssertionError("a shielded scope is not left like this")

    async def look(self, row: RowTarget[S]) -> RowState:
        """What stands there."""
        self._check()
        try:
            step = await self._carrier.carry(looking(row.words))
        except LockError as exc:
            raise row.explained(exc) from exc.__cause__
        return row.state(step)

    async def grants(self, row: RowTarget[S]) -> tuple[RowGrant, ...]:
        """The leases that stand there."""
        self._check()
        if not isinstance(row.way, LeasedStrategy):
            return ()
        try:
            grants, got = await self._carrier.carry(row.way.list())
        except LockError as exc:
            raise row.explained(exc) from exc.__cause__
        if not got.held:
            row.found(got)
        return grants

    def close(self) -> None:
        """Give everything back, and let nobody wait any longer."""
        self._waiting.wake()
        self._requests.close()
        task = self._host.current_task()
        for holding in list(self._held):
            holding.close(task)
            self._end(holding, None).log_failure()

    async def wait_closed(self) -> None:
        """Wait until that is done, for a while at most; after ``close``."""
        await self._requests.wait_closed()

    async def extend(self, holding: RowLease[S]) -> bool:
        """Renew its lease by hand; False if it was lost."""
        self._check()
        sent, lease = self._host.clock.now(), holding.row.way.lease
        assert lease is not None
        try:
            got = await self._keep(holding)
        except LockError as exc:
            raise holding.row.explained(exc) from exc.__cause__
        if got.grant is not None:
            holding.renewed(sent, lease)
        elif not got.again:
            holding.lose(why_gone(holding, self._host.clock.now()))
        return holding.lost is None

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made it."""
        return os.getpid() != self._pid

    def now(self) -> float:
        """Local time."""
        return self._host.clock.now()

    def new_scope(self) -> anyio.CancelScope:
        """Of this loop's library."""
        return self._host.new_scope()

    async def _look_after(self, holding: RowLease[S]) -> None:
        await keep(holding, partial(self._keep, holding), self._host)
        if holding.abandoned(self._host):
            self._held.discard(holding)

    def _keep(self, holding: RowLease[S]) -> Pending[RowOutcome]:
        way = holding.row.way
        assert isinstance(way, LeasedStrategy)
        return self._carrier.carry(way.keep(holding.attempt))

    def _end(self, holding: RowLease[S], reason: str | None) -> Pending[RowOutcome]:
        self._held.discard(holding)
        holding.over.set()
        row, attempt = holding.row, holding.attempt
        task = None if holding.task is None else holding.task()
        mine = {} if task is None else self._mine.get(task, {})
        if mine.get(row.identity) is holding:
            del mine[row.identity]
        return self._requests.give(
            row, attempt, attempt.reason if reason is None else reason
        )

    def _freed(self, identity: Kind) -> None:
        self._waiting.wake(identity)
