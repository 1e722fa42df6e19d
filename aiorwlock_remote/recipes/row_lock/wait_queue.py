"""Waiting for row locks: one task of each mode asks for a row, the others for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from random import random
from typing import Generic, TypeVar

import anyio

from aiorwlock_remote.core.lease import local_deadline
from aiorwlock_remote.core.polling import back_off
from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, RowState
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import BackendUnavailable, LockError
from aiorwlock_remote.recipes.row_lock.lease import RowLease
from aiorwlock_remote.recipes.row_lock.requests import RETRY_PERIOD, RowRequests
from aiorwlock_remote.recipes.row_lock.strategies import RowAttempt, RowOutcome
from aiorwlock_remote.recipes.row_lock.target import Kind, RowTarget, Watch
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
        self._crowds: weakref.WeakValueDictionary[Kind, RowWaiters]
        self._crowds = weakref.WeakValueDictionary()

    async def obtain(
        self, wish: RowRequest[S], *, wait: bool
    ) -> RowLease[S] | RowState:
        """What was obtained, or what was in the way when the time was over."""
        got = await self._once(wish)
        if isinstance(got, RowState) and wait:
            return await self._wait(wish, got)
        return got

    def wake(self, identity: Kind | None = None) -> None:
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
                    got.again or _lets(state, attempt.mode)
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


def _lets(state: RowState, mode: Mode) -> bool:
    return state.mark == UNLOCK or (state.mark == READ_LOCK and mode is Mode.READ)
