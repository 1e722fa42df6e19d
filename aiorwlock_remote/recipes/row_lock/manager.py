"""All row locks of one event loop at one database: who waits and who holds.

Of the tasks of a process that want a row in the same mode, one polls the row and the
others wait for that task: the database is polled by processes, not by tasks.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import random
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, RowState, look_plan
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import (
    BackendUnavailable,
    LockError,
    LockTimeout,
    LossReason,
    WouldDeadlock,
)
from aiorwlock_remote.logs import log_event
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
    log,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import RENEWALS_PER_LEASE, local_deadline

S = TypeVar("S")

IMMEDIATE_ATTEMPTS = 3
"""Attempts without a pause while the row looks free or changes at each of them."""
FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.01, 0.5
"""Seconds, at most, before a waiter's second attempt, and between two later ones."""
RENEWAL_RETRIES = 10
"""How many times sooner than usual the next renewal follows one without an answer."""


def _event() -> anyio.Event:
    # Not `default_factory=anyio.Event`: anyio imports its submodules when one of its
    # names is first used, which would be with the import of this module.
    return anyio.Event()


@dataclass(eq=False, slots=True)
class RowLease(Generic[S]):
    """State of a row lock that this process holds, with or without a lease.

    Args:
        attempt: The attempt that locked the row.
        loop: The event loop of the task that acquired it.
        grant: The grant in the row; None without a lease.
        deadline: Local monotonic time from which the store may end the lease; infinite
            without one.
        task: The task that acquired it.
        entered: True if the lock belongs to ``task``, as in ``async with``; False if it
            belongs to its ``RowHeld``, whose destructor sets ``dropped``.
        closed_under: True if it was released because another task closed the ``Locks``.
        lost: Why the lock was lost; None as long as this process knows of no loss.
        body: The cancel scope of the ``async with`` body; a loss cancels it.
        over: Set once the lock was released.
    """

    attempt: RowAttempt[S]
    loop: TaskEventLoop
    grant: RowGrant | None
    deadline: float
    task: weakref.ref[Any] | None = None
    entered: bool = False
    dropped: bool = False
    closed_under: bool = False
    lost: LossReason | None = None
    body: anyio.CancelScope | None = None
    over: anyio.Event = field(default_factory=_event)

    @property
    def row(self) -> RowTarget[S]:
        return self.attempt.row

    @property
    def fence(self) -> int | None:
        return None if self.grant is None else self.grant.fence

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite without a lease."""
        return self.deadline - self.loop.clock.now()

    def loss_reason(self) -> LossReason | None:
        """Return why the lock is lost; None while this process counts it as held."""
        return "expired" if self.lost is None and self.left <= 0 else self.lost

    def reason_gone(self) -> LossReason:
        """Return "expired" if the deadline has passed, else "forced"."""
        return "expired" if self.left <= 0 else "forced"

    def blocks_own_task(self) -> bool:
        """Return True if the holding task would wait for itself for ever."""
        # A dropped lease ends by itself, so its task may wait for the row again
        # (test_who_dropped_it_may_ask_again).
        ends = self.dropped and self.grant is not None
        return self.loss_reason() is None and not ends

    def abandoned(self) -> bool:
        """Return True if the owner (a task or a ``RowHeld``) no longer exists."""
        if self.entered:
            return self.task is not None and self.loop.finished(self.task)
        return self.dropped

    def lose(self, reason: LossReason) -> None:
        """Record the loss and cancel the body; do nothing after a release."""
        if self.lost is None and not self.over.is_set():
            self.lost = reason
            self._cancel_body()
            self.attempt.log_debug("lost", fence=self.fence, cause=reason)

    def close(self, task: object) -> None:
        """Cancel the body because ``task`` closes the ``Locks``.

        Do nothing if ``task`` itself holds the lock: it may continue after ``aclose``.
        """
        own = self.task is not None and self.task() is task
        self.closed_under = not own and self.lost is None
        if self.closed_under:
            self._cancel_body()

    def renewed(self, sent_at: float) -> None:
        """Record a renewal that was sent at ``sent_at`` (seconds, monotonic clock)."""
        lease = self.row.strategy.lease
        assert lease is not None
        self.deadline = max(self.deadline, local_deadline(sent_at, lease, None))

    def _cancel_body(self) -> None:
        if self.body is not None:
            self.body.cancel()


class RowWaiters:
    """The tasks of this process that wait for one row.

    ``turns``: for each mode a lock, held by the task that polls the row for that mode.
    ``changed``: set, and replaced by a new event, when the row may be free.
    """

    def __init__(self) -> None:
        self.turns: dict[Mode, anyio.Lock] = {mode: anyio.Lock() for mode in LOCK_MODES}
        self.changed: anyio.Event = anyio.Event()
        self._polling = 0
        self._unwatch: Callable[[], object] | None = None

    @contextmanager
    def polling(self, watch: Watch | None) -> Iterator[None]:
        """Context in which a task polls the row.

        While any task is inside, ``watch`` (None: the store has none) calls ``wake``
        whenever another process may have freed the row.
        """
        self._polling += 1
        if self._polling == 1 and watch is not None:
            self._unwatch = watch(self.wake)
        try:
            yield
        finally:
            self._polling -= 1
            if not self._polling and self._unwatch is not None:
                self._unwatch()
                self._unwatch = None

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class RowLockManager(Generic[S]):
    """Acquires, renews and releases the row locks of one event loop in one database.

    Args:
        store: Runs the SQL statements.
        loop: The event loop, whose tasks acquire the locks.
        check: Called before each request; raises if the ``Locks`` is closed.
        checked_kinds: Tables and columns known to store lock marks untruncated; the
            manager adds more.
    """

    def __init__(
        self,
        store: RunsPlans[S],
        loop: TaskEventLoop,
        check: Callable[[], None],
        checked_kinds: set[RowIdentity] | None = None,
    ) -> None:
        self._store = store
        self.loop: TaskEventLoop = loop
        self._check = check
        self._pid = os.getpid()
        self._requests = RowRequests(store, loop, self.wake, checked_kinds)
        self._waiters: weakref.WeakValueDictionary[RowIdentity, RowWaiters]
        self._waiters = weakref.WeakValueDictionary()
        self._held: set[RowLease[S]] = set()
        self._by_task: weakref.WeakKeyDictionary[Any, dict[RowIdentity, RowLease[S]]]
        self._by_task = weakref.WeakKeyDictionary()

    async def acquire(
        self, row: RowTarget[S], mode: Mode, reason: str, timeout: float | None
    ) -> RowLease[S] | RowState:
        """Lock the row and return its lease; return its state if it stays locked.

        ``reason`` is stored in the row; ``timeout``: seconds to wait; None: for ever;
        0: one attempt. Raise ``WouldDeadlock`` if this task holds the row.
        """
        self._check()
        task = self.loop.current_task()
        own = self._by_task.setdefault(task, {})
        held = own.get(row.identity)
        if held is not None and held.blocks_own_task():
            held_mode = str(held.attempt.mode)
            raise WouldDeadlock(resource=row.label, held_mode=held_mode)
        until = None if timeout is None else self.loop.clock.now() + timeout
        attempt = RowAttempt(row, mode, reason, random_id().hex(), until)
        got = await self._obtain(attempt, wait=timeout != 0)
        if isinstance(got, RowState):
            return got
        got.task = weakref.ref(task)
        self._held.add(got)
        own[row.identity] = got
        try:
            self._check()
        except LockError:
            # Closed between the grant and here: ``close`` did not see this lease, and
            # nothing else would release it.
            self._end(got, None).log_failure()
            raise
        if got.grant is not None:
            self.loop.spawn(partial(self._keep_renewed, got))
        return got

    async def obtain(
        self, row: RowTarget[S], mode: Mode, reason: str, timeout: float | None
    ) -> RowLease[S]:
        """Lock the row and return its lease; ``LockTimeout`` if it stays locked."""
        got = await self.acquire(row, mode, reason, timeout)
        if isinstance(got, RowLease):
            return got
        raise LockTimeout(
            resource=row.label,
            mode=str(mode),
            timeout=timeout or 0.0,
            holders=(str(got),),
        )

    async def release(self, held: RowLease[S], reason: str | None) -> RowOutcome | None:
        """Release the row; return None if it was released before.

        The request is sent before anything is awaited; cancelling does not stop it.
        ``reason``: stored in the row; None: the reason with which it was acquired.
        """
        if held not in self._held:
            return None
        self._check()
        reply = self._end(held, reason)
        # Shielded: only the answer says whether the lock was lost meanwhile. asyncio's
        # own cancel() gets through (test_cancelled_natively_again_and_again).
        with anyio.CancelScope(shield=True), held.row.explaining():
            return await reply
        raise AssertionError("a shielded scope is not left like this")

    async def look(self, row: RowTarget[S]) -> RowState:
        self._check()
        with row.explaining():
            step = await self._store.carry(look_plan(row.strategy.statements))
        return row.state(step)

    async def grants(self, row: RowTarget[S]) -> tuple[RowGrant, ...]:
        """Return the row's grants, expired ones too; none without a lease."""
        self._check()
        if not isinstance(row.strategy, LeasedStrategy):
            return ()
        with row.explaining():
            grants, got = await self._store.carry(row.strategy.list())
        if not got.held:
            row.found(got)
        return grants

    def close(self) -> None:
        """Send the release of all rows that are held; waiting tasks get ``Closed``."""
        self.wake()
        self._requests.close()
        task = self.loop.current_task()
        for held in list(self._held):
            held.close(task)
            self._end(held, None).log_failure()

    async def wait_closed(self) -> None:
        """Wait ``SETTLE_TIMEOUT`` s at most for the releases that ``close`` sent."""
        await self._requests.wait_closed()

    async def extend(self, held: RowLease[S]) -> bool:
        """Renew the lease of ``held`` now; return False if its lock is lost."""
        self._check()
        with held.row.explaining():
            await self._renew(held)
        return held.lost is None

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    def wake(self, identity: RowIdentity | None = None) -> None:
        """Let tasks that wait for this row (None: for any row) ask for it again now."""
        for each, waiters in list(self._waiters.items()):
            if identity in (None, each):
                waiters.wake()

    async def _obtain(
        self, attempt: RowAttempt[S], *, wait: bool
    ) -> RowLease[S] | RowState:
        got = await self._try(attempt)
        # At once, before queueing: without waiters a free row costs one request.
        if isinstance(got, RowState) and wait:
            return await self._wait(attempt, got)
        return got

    async def _wait(
        self, attempt: RowAttempt[S], state: RowState
    ) -> RowLease[S] | RowState:
        row = attempt.row
        waiters = self._waiters.get(row.identity)
        if waiters is None:
            waiters = self._waiters[row.identity] = RowWaiters()
        # By mode: a reader must not wait behind a writer whom the row refuses.
        turn = waiters.turns[attempt.mode]
        attempt.log_debug("queued")
        with anyio.move_on_after(self._left(attempt)) as scope:
            await turn.acquire()
        if scope.cancelled_caught:
            return state
        try:
            with waiters.polling(row.watch):
                return await self._poll(waiters, attempt)
        finally:
            turn.release()

    async def _poll(
        self, waiters: RowWaiters, attempt: RowAttempt[S]
    ) -> RowLease[S] | RowState:
        polls = 0
        while True:
            self._check()
            # Taken before the attempt: a release that comes while the attempt is under
            # way sets this event, not its successor, and is not missed.
            changed = waiters.changed
            got = await self._try(attempt)
            left = self._left(attempt)
            if isinstance(got, RowLease) or (left is not None and left <= 0):
                return got
            pause = min(
                MAX_POLL_INTERVAL, back_off(polls, random(), first=FIRST_POLL_INTERVAL)
            )
            polls += 1
            # Programs that use the published statements alone do not notify, so a
            # waiter polls, with pauses that grow until it is woken
            # (test_looks_are_more_and_more_seldom_until_somebody_leaves).
            cause = "poll"
            with anyio.move_on_after(pause if left is None else min(pause, left)):
                await changed.wait()
                polls, cause = 0, "message"
            attempt.log_debug("woken", cause=cause)

    async def _try(self, attempt: RowAttempt[S]) -> RowLease[S] | RowState:
        # The request is sent again if it was certainly not carried out, if its ticket
        # shows what became of it, or if the state that refused it would admit it.
        row, now = attempt.row, self.loop.clock.now
        began, failing, doubtful = now(), None, False
        for tries in count(1):
            # Whichever of the requests obtained the lease, the last one renewed it: its
            # time counts from here (test_a_lease_counts_from_before_it_was_asked_for).
            sent_at = now()
            try:
                got = await self._requests.take(attempt, doubtful=doubtful)
            except BackendUnavailable as exc:
                failing = exc if failing is None or failing.nothing_done else failing
                sure = exc.nothing_done or row.strategy.lease is not None
                late = attempt.until is not None and now() >= attempt.until
                if not sure or late or now() - began >= RETRY_PERIOD:
                    raise self._given_up(attempt, failing) from exc.__cause__
            except LockError as exc:
                # An earlier request of this attempt may have been granted, though this
                # one is refused for good (test_another_try_that_is_refused).
                if doubtful or (is_uncertain(exc) and row.strategy.lease is not None):
                    self._requests.give(attempt).log_failure()
                raise row.explained(exc) from exc.__cause__
            else:
                if got.held:
                    return self._lease(attempt, got, sent_at)
                state = row.found(got)
                if tries >= IMMEDIATE_ATTEMPTS or not (
                    got.again or _admits(state, attempt.mode)
                ):
                    attempt.log_debug("refused", cause=state)
                    return state
                continue
            doubtful = not failing.nothing_done and row.strategy.lease is not None
            uncertain = self._requests.uncertain
            with uncertain(attempt) if doubtful else nullcontext():
                await anyio.sleep(back_off(tries, random()))
            self._check()
        raise AssertionError("count() does not end")

    def _lease(
        self, attempt: RowAttempt[S], got: RowOutcome, sent_at: float
    ) -> RowLease[S]:
        lease = attempt.row.strategy.lease
        deadline = math.inf if lease is None else local_deadline(sent_at, lease, None)
        held = RowLease(attempt, self.loop, got.grant, deadline)
        if held.left > 0:
            attempt.log_debug("granted", fence=held.fence)
            return held
        # The answer took longer than the lease: the row may be another holder's by now
        # (test_one_that_comes_when_it_is_over_is_given_back).
        self._requests.give(attempt).log_failure()
        raise BackendUnavailable(
            what=f"{attempt.row.label}: the grant arrived when its lease had expired",
            hint="use a longer lease",
            nothing_done=True,
        )

    def _given_up(self, attempt: RowAttempt[S], exc: BackendUnavailable) -> LockError:
        # A lost request may have obtained the row: it is released.
        if not exc.nothing_done and attempt.row.strategy.lease is not None:
            self._requests.give(attempt).log_failure()
        return attempt.row.unclear(attempt.mode, exc)

    def _left(self, attempt: RowAttempt[S]) -> float | None:
        if attempt.until is None:
            return None
        return max(0.0, attempt.until - self.loop.clock.now())

    async def _keep_renewed(self, held: RowLease[S]) -> None:
        # Renews each third of the lease, until it is released, lost or abandoned. A
        # renewal that got no answer is repeated after a tenth of that pause
        # (``RENEWAL_RETRIES``); the lease is lost only at its deadline.
        lease = held.row.strategy.lease
        assert lease is not None
        pause = lease / RENEWALS_PER_LEASE
        while True:
            with anyio.move_on_after(max(0.0, min(pause, held.left))):
                await held.over.wait()
            if held.over.is_set() or held.lost is not None:
                break
            if held.abandoned():
                label = held.row.label
                log_event(log, "owner_gone", resource=label, fence=held.fence)
                break
            # Not before: a renewal without an answer may have been carried out
            # (test_a_server_that_says_nothing).
            if held.left <= 0:
                held.lose("unreachable")
                break
            pause = lease / RENEWALS_PER_LEASE
            renewed = False
            with anyio.move_on_after(held.left), suppress(LockError):
                renewed = await self._renew(held)
            if renewed:
                held.attempt.log_debug("renewed", fence=held.fence)
            elif held.loss_reason() is None and not held.over.is_set():
                pause /= RENEWAL_RETRIES
                held.attempt.log_debug("renewal_retried", fence=held.fence)
        if held.abandoned():
            self._held.discard(held)

    async def _renew(self, held: RowLease[S]) -> bool:
        # Returns False if others changed the row at each try, or the lock is lost.
        strategy, sent_at = held.row.strategy, self.loop.clock.now()
        assert isinstance(strategy, LeasedStrategy)
        got = await self._store.carry(strategy.keep(held.attempt))
        if got.grant is not None:
            # From before the request: the store may have renewed the lease at any time
            # after that.
            held.renewed(sent_at)
        elif not got.again:
            held.lose(held.reason_gone())
        return got.grant is not None

    def _end(self, held: RowLease[S], reason: str | None) -> Pending[RowOutcome]:
        self._held.discard(held)
        held.over.set()
        row = held.row
        task = None if held.task is None else held.task()
        own = {} if task is None else self._by_task.get(task, {})
        if own.get(row.identity) is held:
            del own[row.identity]
        return self._requests.give(held.attempt, reason)


def _admits(state: RowState, mode: Mode) -> bool:
    return state.mark == UNLOCK or (state.mark == READ_LOCK and mode is Mode.READ)
