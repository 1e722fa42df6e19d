"""Acquiring row locks: each task of a process asks until the row admits it.

Of the tasks of a process that want a row in the same mode, one polls the row and the
others wait for that task: the database is polled by processes, not by tasks. There is
no queue in the store, so ``core.mode_queue`` would have no entry to refresh.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from random import random
from typing import Any, Generic, TypeVar, cast

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Claim, NotHeld, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.row import READ_LOCK, UNLOCK, RowState, look_plan
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import BackendUnavailable, LockError
from aiorwlock_remote.recipes.row_lock.requests import (
    SETTLE_TIMEOUT,
    RowRequests,
    RunsPlans,
)
from aiorwlock_remote.recipes.row_lock.target import (
    LeasedStrategy,
    RowAttempt,
    RowKind,
    RowTarget,
    Watch,
)
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import WakeCause

S = TypeVar("S")

IMMEDIATE_ATTEMPTS = 3
"""Attempts without a pause while the row looks free or changes at each of them."""
FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.01, 0.5
"""Seconds, at most, before a waiter's second attempt, and between two later ones."""


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


class RowAcquirer(LockAcquirer, Generic[S]):
    """Acquires, extends and releases row locks in one database, for one event loop.

    Args:
        client: Has the lease keeper, the clean-up and the clock.
        store: Runs the SQL statements.
        checked_kinds: Tables and columns known to store lock marks untruncated; the
            acquirer adds more.
        expect_renewals: Called before the first request for a row with a lease.
    """

    def __init__(
        self,
        client: StoreClient,
        store: RunsPlans[S],
        checked_kinds: set[RowKind] | None = None,
        expect_renewals: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(client)
        self._expect_renewals = expect_renewals
        self._requests = RowRequests(store, client, self.wake, checked_kinds)
        self._rows: weakref.WeakValueDictionary[RowTarget[S], RowWaiters]
        self._rows = weakref.WeakValueDictionary()
        self._waits: dict[RowAttempt[S], float] = {}
        self._releases: dict[str, Pending[Reply]] = {}

    def close(self, error: BaseException) -> None:
        """Wake all waiting tasks; ``take`` raises ``Closed`` in them."""
        del error
        self.wake()

    def waiters(self) -> Iterable[tuple[Mode, float]]:
        return [(attempt.mode, since) for attempt, since in self._waits.items()]

    def wake(self, row: RowTarget[S] | None = None) -> None:
        """Let tasks that wait for this row (None: for any row) ask for it again now."""
        for each, waiters in list(self._rows.items()):
            if row in (None, each):
                waiters.wake()

    def release(self, lease: Lease, reason: str | None = None) -> Pending[Reply]:
        """Send the release of a grant; repeat it in the background if it fails.

        ``reason``: stored in the row; None: the reason with which it was acquired.
        """
        row: RowTarget[Any] = row_of(lease)
        given = RowAttempt(row, lease.mode, lease.who.reason, lease.ticket)
        released = self._releases[lease.ticket] = self._requests.give(given, reason)
        released.add_done_callback(lambda _: self._releases.pop(lease.ticket, None))
        return released

    async def wait_released(self, lease: Lease) -> None:
        """Wait for the reply to a release under way, also in a cancelled task.

        Wait ``SETTLE_TIMEOUT`` seconds at most; ignore the error of the release.
        """
        released = self._releases.get(lease.ticket)
        if released is not None:
            with (
                anyio.CancelScope(shield=True),
                anyio.move_on_after(SETTLE_TIMEOUT),
                suppress(Exception),
            ):
                await released

    async def extend(self, lease: Lease) -> None:
        """Renew a grant now; if the store no longer has the grant, lose it.

        Raises:
            BackendError: the store failed, or other programs always changed the row.
        """
        row = row_of(lease)
        sent_at = self._clock.now()
        with row.explaining():
            outcome = await self._requests.send(row.renewal_plan(lease.ticket))
        if isinstance(outcome, NotHeld):
            lease.gone(outcome.reason)
        elif isinstance(outcome, Grant):
            lease.renewed(sent_at, lease.terms.lease)
        else:
            raise outcome

    async def look(self, row: RowTarget[S]) -> RowState:
        with row.explaining():
            step = await self._requests.send(look_plan(row.strategy.statements))
        return row.state(step)

    async def grants(self, row: RowTarget[S]) -> tuple[RowGrant, ...]:
        """Return the row's grants, expired ones too; none without a lease."""
        if not isinstance(row.strategy, LeasedStrategy):
            return ()
        with row.explaining():
            grants, got = await self._requests.send(row.strategy.list())
        if not got.held:
            row.found(got)
        return grants

    async def _try(self, request: AcquireRequest) -> Lease:
        got = await self._take(request, self._attempt(request, self._clock.now()))
        if isinstance(got, RowState):
            raise self.timed_out(request, (str(got),))
        return got

    async def _wait(self, request: AcquireRequest, until: float | None) -> Lease:
        self._client.throttle.let_in()
        attempt = self._attempt(request, until)
        self._waits[attempt] = self._clock.now()
        try:
            got = await self._take(request, attempt)
            # At once, before queueing: without waiters a free row costs one request.
            if isinstance(got, RowState):
                got = await self._wait_turn(request, attempt, got)
        finally:
            del self._waits[attempt]
        if isinstance(got, RowState):
            raise self.timed_out(request, (str(got),))
        return got

    async def _wait_turn(
        self, request: AcquireRequest, attempt: RowAttempt[S], state: RowState
    ) -> Lease | RowState:
        row = attempt.row
        waiters = self._rows.get(row)
        if waiters is None:
            waiters = self._rows[row] = RowWaiters()
        # By mode: a reader must not wait behind a writer whom the row refuses.
        turn = waiters.turns[attempt.mode]
        attempt.log_debug("queued")
        with anyio.move_on_after(self._left(attempt)) as scope:
            await turn.acquire()
        if scope.cancelled_caught:
            return state
        try:
            with waiters.polling(row.watch):
                return await self._poll(request, waiters, attempt)
        finally:
            turn.release()

    async def _poll(
        self, request: AcquireRequest, waiters: RowWaiters, attempt: RowAttempt[S]
    ) -> Lease | RowState:
        polls = 0
        while True:
            # Taken before the attempt: a release that comes while the attempt is under
            # way sets this event, not its successor, and is not missed.
            changed = waiters.changed
            got = await self._take(request, attempt)
            left = self._left(attempt)
            if isinstance(got, Lease) or (left is not None and left <= 0):
                return got
            pause = back_off(
                polls, random(), first=FIRST_POLL_INTERVAL, longest=MAX_POLL_INTERVAL
            )
            polls += 1
            # Programs that use the published statements alone do not notify, so a
            # waiter polls, with pauses that grow until it is woken
            # (test_polls_are_rarer_and_rarer_until_a_wake_up).
            cause: WakeCause = "poll"
            with anyio.move_on_after(pause if left is None else min(pause, left)):
                await changed.wait()
                polls, cause = 0, "message"
            self._client.count_wake(cause)
            attempt.log_debug("woken", cause=cause)

    async def _take(
        self, request: AcquireRequest, attempt: RowAttempt[S]
    ) -> Lease | RowState:
        # The request is sent again if it was certainly not carried out, if its ticket
        # shows what became of it, or if the state that refused it would admit it.
        client, row, now = self._client, attempt.row, self._clock.now
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
                if not sure or late or now() - began >= client.connect_timeout:
                    raise self._given_up(attempt, failing) from exc.__cause__
            except LockError as exc:
                # An earlier request of this attempt may have been granted, though this
                # one is refused for good (test_another_try_that_is_refused).
                if doubtful or (is_uncertain(exc) and row.strategy.lease is not None):
                    self._requests.give(attempt).log_failure()
                raise row.explained(exc) from exc.__cause__
            else:
                if got.held:
                    return self._lease(request, attempt, got.grant, sent_at)
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
            client.requests_retried += 1
        raise AssertionError("count() does not end")

    def _attempt(self, request: AcquireRequest, until: float | None) -> RowAttempt[S]:
        claim: Claim = self._client.claim(request)
        row = cast("RowTarget[S]", request.resource)
        if self._expect_renewals is not None and request.terms.lease is not None:
            self._expect_renewals()
            self._expect_renewals = None
        return RowAttempt(row, request.mode, request.reason, claim.ticket, until)

    def _lease(
        self,
        request: AcquireRequest,
        attempt: RowAttempt[S],
        found: RowGrant | None,
        sent_at: float,
    ) -> Lease:
        fence, expires = (0, None) if found is None else (found.fence, found.expires)
        who = self._client.requester(attempt.reason)
        grant = Grant(attempt.ticket, attempt.mode, fence, 0, expires, who)
        lease = self._client.lease(request, grant, sent_at)
        lease.send_release = self.release
        return lease

    def _given_up(self, attempt: RowAttempt[S], exc: BackendUnavailable) -> LockError:
        # A lost request may have obtained the row: it is released.
        if not exc.nothing_done and attempt.row.strategy.lease is not None:
            self._requests.give(attempt).log_failure()
        return attempt.row.unclear(attempt.mode, exc)

    def _left(self, attempt: RowAttempt[S]) -> float | None:
        if attempt.until is None:
            return None
        return max(0.0, attempt.until - self._clock.now())


def row_of(lease: Lease) -> RowTarget[Any]:
    """Return the row that a lease of a row lock is for."""
    return cast("RowTarget[Any]", lease.resource)


def _admits(state: RowState, mode: Mode) -> bool:
    return state.mark == UNLOCK or (state.mark == READ_LOCK and mode is Mode.READ)
