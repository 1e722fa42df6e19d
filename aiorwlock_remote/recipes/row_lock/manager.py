"""All row locks of one loop at one database: who holds which.

Waiting for row locks: one task of each mode asks for a row, the others for it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import random
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, RowState, look_plan
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import back_off, local_deadline
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import (
    BackendUnavailable,
    LockError,
    LockTimeout,
    WouldDeadlock,
)
from aiorwlock_remote.recipes.row_lock.lease import (
    RowLease,
    reason_of_loss,
    renew_until_over,
)
from aiorwlock_remote.recipes.row_lock.requests import (
    RETRY_PERIOD,
    RowRequests,
    RunsPlans,
)
from aiorwlock_remote.recipes.row_lock.target import (
    LeasedStrategy,
    RowAttempt,
    RowIdentity,
    RowOutcome,
    RowTarget,
    Watch,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

S = TypeVar("S")

IMMEDIATE_ATTEMPTS = 3
"""Attempts without a pause, as long as nothing is in the way."""
FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.01, 0.5
"""Seconds between two looks of a waiter, at most: at the beginning, and ever."""


@dataclass(frozen=True, slots=True)
class RowRequest(Generic[S]):
    """What is wanted. ``until``: a local time; None: for ever."""

    row: RowTarget[S]
    attempt: RowAttempt
    until: float | None


class RowWaiters:
    """The tasks of this process that wait for one row."""

    def __init__(self) -> None:
        self.gates: dict[Mode, anyio.Lock] = {mode: anyio.Lock() for mode in Mode}
        self.bell: anyio.Event = anyio.Event()
        self._looking = 0
        self._stop: Callable[[], object] | None = None

    @contextmanager
    def looking(self, watch: Watch | None) -> Iterator[None]:
        """Told by the store as long as anybody here looks."""
        self._looking += 1
        if self._looking == 1 and watch is not None:
            self._stop = watch(self.wake)
        try:
            yield
        finally:
            self._looking -= 1
            if not self._looking and self._stop is not None:
                self._stop()
                self._stop = None

    def wake(self) -> None:
        """It may be free now."""
        self.bell.set()
        self.bell = anyio.Event()


class RowWaitQueue(Generic[S]):
    """All who want rows, in one loop."""

    def __init__(
        self, requests: RowRequests[S], host: TaskEventLoop, check: Callable[[], None]
    ) -> None:
        """``check``: raises if nothing may be asked any more."""
        self._requests = requests
        self._host = host
        self._check = check
        self._crowds: weakref.WeakValueDictionary[RowIdentity, RowWaiters]
        self._crowds = weakref.WeakValueDictionary()

    async def obtain(
        self, wish: RowRequest[S], *, wait: bool
    ) -> RowLease[S] | RowState:
        """What was obtained, or what was in the way when the time was over."""
        got = await self._once(wish)
        if isinstance(got, RowState) and wait:
            return await self._wait(wish, got)
        return got

    def wake(self, identity: RowIdentity | None = None) -> None:
        """That row, or any, may be free now; or nobody is to wait any longer."""
        for one, crowd in list(self._crowds.items()):
            if identity in (None, one):
                crowd.wake()

    async def _wait(
        self, wish: RowRequest[S], state: RowState
    ) -> RowLease[S] | RowState:
        """Until it is ours, or what was in the way when the time was over."""
        crowd = self._crowds.get(wish.row.identity)
        if crowd is None:
            crowd = self._crowds[wish.row.identity] = RowWaiters()
        gate = crowd.gates[wish.attempt.mode]
        with anyio.move_on_after(self._left(wish)) as scope:
            await gate.acquire()
        if scope.cancelled_caught:
            return state
        try:
            with crowd.looking(wish.row.watch):
                return await self._poll(crowd, wish)
        finally:
            gate.release()

    async def _poll(
        self, crowd: RowWaiters, wish: RowRequest[S]
    ) -> RowLease[S] | RowState:
        looks = 0
        while True:
            self._check()
            bell = crowd.bell
            got = await self._once(wish)
            left = self._left(wish)
            if isinstance(got, RowLease) or (left is not None and left <= 0):
                return got
            pause = min(
                MAX_POLL_INTERVAL, back_off(looks, random(), first=FIRST_POLL_INTERVAL)
            )
            looks += 1
            with anyio.move_on_after(pause if left is None else min(pause, left)):
                await bell.wait()
                looks = 0

    async def _once(self, wish: RowRequest[S]) -> RowLease[S] | RowState:
        """What was obtained, or what is in the way.

        Sent again if it certainly was not carried out, if the ticket tells what became
        of it, or if what was in the way was gone when that was looked at.
        """
        row, attempt, now = wish.row, wish.attempt, self._host.clock.now
        began, failing, doubtful = now(), None, False
        for tries in count(1):
            sent = now()  # whichever obtains it, the last one renews it
            try:
                got = await self._requests.take(row, attempt, doubtful=doubtful)
            except BackendUnavailable as exc:
                failing = exc if failing is None or failing.nothing_done else failing
                sure = exc.nothing_done or row.way.lease is not None
                late = wish.until is not None and now() >= wish.until
                if not sure or late or now() - began >= RETRY_PERIOD:
                    raise self._given_up(wish, failing) from exc.__cause__
            except LockError as exc:
                if doubtful or (is_uncertain(exc) and row.way.lease is not None):
                    self._give_back(wish)
                raise row.explained(exc) from exc.__cause__
            else:
                if got.held:
                    return self._holding(wish, got, sent)
                state = row.found(got)
                if tries >= IMMEDIATE_ATTEMPTS or not (
                    got.again or _admits(state, attempt.mode)
                ):
                    return state
                continue
            doubtful = not failing.nothing_done and row.way.lease is not None
            with self._requests.pausing(row, attempt) if doubtful else nullcontext():
                await anyio.sleep(back_off(tries, random()))
            self._check()
        raise AssertionError("counts for ever")

    def _holding(
        self, wish: RowRequest[S], got: RowOutcome, sent: float
    ) -> RowLease[S]:
        holding = RowLease(wish.row, wish.attempt, got.grant)
        lease = wish.row.way.lease
        if lease is not None:
            holding.deadline = local_deadline(sent, lease, None)
        if self._host.clock.now() < holding.deadline:
            return holding
        self._give_back(wish)
        raise BackendUnavailable(
            what=f"{wish.row.label}: granted when its lease was nearly over",
            hint="a longer lease",
            nothing_done=True,
        )

    def _given_up(self, wish: RowRequest[S], exc: BackendUnavailable) -> LockError:
        """Nobody will use what a lost request may obtain."""
        if not exc.nothing_done and wish.row.way.lease is not None:
            self._give_back(wish)
        return wish.row.unclear(wish.attempt.mode, exc)

    def _give_back(self, wish: RowRequest[S]) -> None:
        attempt = wish.attempt
        self._requests.give(wish.row, attempt, attempt.reason).log_failure()

    def _left(self, wish: RowRequest[S]) -> float | None:
        if wish.until is None:
            return None
        return max(0.0, wish.until - self._host.clock.now())


def _admits(state: RowState, mode: Mode) -> bool:
    return state.mark == UNLOCK or (state.mark == READ_LOCK and mode is Mode.READ)


class RowLockManager(Generic[S]):
    """All row locks of one loop at one database."""

    def __init__(
        self,
        carrier: RunsPlans[S],
        host: TaskEventLoop,
        check: Callable[[], None],
        known: set[RowIdentity] | None = None,
    ) -> None:
        """``check``: raises if nothing may be asked. ``known``: see there."""
        self._carrier = carrier
        self._host = host
        self._check = check
        self._pid = os.getpid()
        self._requests = RowRequests(carrier, host, self._freed, known)
        self._waiting = RowWaitQueue(self._requests, host, check)
        self._held: set[RowLease[S]] = set()
        self._mine: weakref.WeakKeyDictionary[Any, dict[RowIdentity, RowLease[S]]]
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
            step = await self._carrier.carry(look_plan(row.words))
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
            holding.lose(reason_of_loss(holding, self._host.clock.now()))
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
        await renew_until_over(holding, partial(self._keep, holding), self._host)
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

    def _freed(self, identity: RowIdentity) -> None:
        self._waiting.wake(identity)
