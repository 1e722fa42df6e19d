"""Clean-up requests that failed, and requests to undo when a ``Locks`` is closed.

If a connection breaks during a release, or during the withdrawal of a request that may
have been granted, the lock would stay closed to all others until the lease ends. So
these requests are repeated in the background until the store has answered. The caller
gets the failure at once, unless it awaits ``CleanupRetrier.outcome``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, Protocol, TypeVar

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain, may_be_repeated
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Closed
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

T = TypeVar("T")

MAX_REQUESTS_IN_FLIGHT = 500
"""Most clean-up requests that are under way at the same time."""
MAX_RETRIES = 5
"""How often a request that was not carried out is repeated before its caller fails."""
MAX_WAIT_FOR_REPLY = 2.0
"""Seconds for which a round of clean-up requests waits for its slowest reply."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


async def ask_with_retries(
    ask: Callable[[], Awaitable[T]],
    clock: Clock,
    timeout: float,
    before_retry: Callable[[], object],
) -> T:
    """Return what ``ask()`` returns; repeat the call after errors that allow it.

    Args:
        ask: sends the request. It is called up to ``MAX_RETRIES`` more times, with
            growing pauses, and only after an error that proves that the request was not
            carried out and may succeed soon (``may_be_repeated``).
        clock: local monotonic clock, which measures ``timeout``.
        timeout: seconds after which ``ask`` is not called again.
        before_retry: called before each repetition; an error from it ends the call.

    Raises:
        LockError: the error of the last request.
    """
    until = clock.now() + timeout
    for attempt in range(MAX_RETRIES):
        try:
            return await ask()
        except BackendUnavailable as exc:
            pause = back_off(attempt, random())
            if not may_be_repeated(exc) or clock.now() + pause >= until:
                raise
        await anyio.sleep(pause)
        before_retry()
    return await ask()  # the last one: its error goes to the caller


class InFlightGrants:
    """Register of one ``Locks``: the requests that were sent and may be granted, each
    with a function to undo it. To be used in the event loop's thread. Tasks in a wait
    queue are not registered: ``LockAcquirer.close`` ends their waits.
    """

    def __init__(self) -> None:
        self._undo: dict[object, Callable[[], object]] = {}
        self._closed = False

    def check(self) -> None:
        if self._closed:
            raise Closed

    def begin(self, undo: Callable[[], object]) -> object:
        """Register a request that is about to be sent; return a key for ``end``. If
        ``close`` is called before ``end``, it calls ``undo()``. Raise ``Closed`` if
        ``close`` was called before: the request must not be sent.
        """
        self.check()
        key = object()
        self._undo[key] = undo
        return key

    def end(self, key: object) -> bool:
        """Unregister a request; False: ``close`` has called its ``undo`` already."""
        return self._undo.pop(key, None) is not None

    @contextmanager
    def under(self, undo: Callable[[], object]) -> Generator[None, None, None]:
        """Register a request while the ``with`` block sends and awaits it.

        If ``close`` is called during the block, it calls ``undo()``, and the block ends
        with ``Closed``; after ``close``, the block is not entered. After the block, the
        caller must hand the grant to its owner before it awaits anything, because
        ``close`` no longer undoes it.
        """
        key = self.begin(undo)
        try:
            yield
        except BaseException:
            self.end(key)
            raise
        if not self.end(key):
            raise Closed

    def close(self) -> None:
        """Call every registered ``undo``; from now on ``begin`` raises ``Closed``. Call
        this before the store is closed, as ``undo`` sends a request.
        """
        self._closed = True
        undo, self._undo = self._undo, {}
        for one in undo.values():
            one()


class HasLabel(Protocol):
    """Object, such as a lock's resource, that log events name by its ``label``."""

    @property
    def label(self) -> str:
        """The name of the resource as users know it, ``type/id``."""


@dataclass(eq=False, slots=True)
class _PendingCleanup:
    resource: HasLabel
    retry: Callable[[], Pending[Any]]
    # Local time at which the grant ends by itself.
    expires: float
    repeatable: bool
    # Whether the answer to a repetition is that to the first request as well.
    resolves: bool
    # The answer to the request that failed, and the error of it or of the last retry.
    first: Pending[Any]
    error: BaseException
    # What ``CleanupRetrier.outcome`` awaits for ``first``; None once it is done.
    outcome: Pending[Any] | None = None
    # Retries that failed, and whether one is under way.
    failures: int = 0
    in_flight: bool = False

    def may_be_retried(self, error: BaseException) -> bool:
        if not isinstance(error, BackendError):
            return False
        return self.repeatable or not is_uncertain(error)

    def may_answer(self, error: BaseException) -> bool:
        """Return whether a repetition after ``error`` may answer the first request."""
        lost = self.resolves and isinstance(error, BackendUnavailable)
        return lost or may_be_repeated(error)


class CleanupRetrier:
    """Background task that repeats the failed releases and withdrawals of a ``Locks``.

    Invariants (tests/runtime/test_cleanup.py, tests/runtime/test_in_flight.py):

    - A request is repeated until the store has answered, the lease is over, or an error
      shows that no repetition helps.
    - Requests that may have been carried out are repeated only if ``repeatable``.
    - If the background task is cancelled from outside, another one goes on.
    - Each task that waits in ``outcome`` gets one answer, even if the background task
      is cancelled.
    - When the ``Locks`` is closed, each failed request is sent for the last time.
    """

    def __init__(self, loop: TaskEventLoop, in_flight: InFlightGrants) -> None:
        self.retried: int = 0
        """Number of repetitions sent so far."""
        self._clock = loop.clock
        self._loop = loop
        self._in_flight = in_flight
        self._cleanups: dict[_PendingCleanup, None] = {}
        self._outcomes: dict[Pending[Any], Pending[Any]] = {}
        self._key: object = None
        self._closed = False
        self._task = BackgroundTask(loop, self._run)

    def retry_if_failed(
        self,
        first: Pending[T],
        resource: HasLabel,
        retry: Callable[[], Pending[Any]],
        lease: float | None,
        *,
        repeatable: bool = True,
        resolves: bool = False,
    ) -> Pending[T]:
        """Return ``first``; if that request fails, repeat it in the background.

        Args:
            first: the reply, received or still to come, to a release or withdrawal.
            resource: named in log events.
            retry: sends a request after which nothing is held, whether or not the
                earlier requests were carried out.
            lease: seconds after which the grant ends by itself; None: never.
            repeatable: False if a request that may have been carried out must not be
                repeated (a row lock without a lease has no ticket: a second release
                would end another holder's grant).
            resolves: True if the reply to a repetition also shows what became of a
                request whose reply was lost, so that ``outcome`` waits for it.
        """

        def answered(reply: Pending[T]) -> None:
            if reply.error is not None:
                self.repeat(
                    *(reply, resource, retry, lease),
                    repeatable=repeatable,
                    resolves=resolves,
                )

        first.add_done_callback(answered)
        return first

    async def outcome(self, first: Pending[T]) -> T:
        """Wait for the answer to a request given to ``retry_if_failed``; return it.

        If it failed, but was certainly not carried out and may succeed soon, wait for
        up to ``MAX_RETRIES`` repetitions, and raise the last one's error if all fail;
        likewise if its reply was lost, and repetitions resolve that (``resolves``).
        Other errors are raised at once. Cancelling the caller stops no request.
        """
        try:
            return await first
        except BackendUnavailable:
            outcome: Pending[T] | None = self._outcomes.get(first)
            if outcome is None:
                raise
        return await outcome

    def repeat(
        self,
        first: Pending[Any],
        resource: HasLabel,
        retry: Callable[[], Pending[Any]],
        lease: float | None,
        *,
        repeatable: bool = True,
        resolves: bool = False,
    ) -> None:
        """Repeat ``first``, a request that has failed, in the background. The arguments
        are those of ``retry_if_failed``.
        """
        error = first.error
        assert error is not None, "only a failed request is repeated"
        expires = math.inf if lease is None else self._clock.now() + lease
        cleanup = _PendingCleanup(
            *(resource, retry, expires, repeatable, resolves, first, error)
        )
        if not cleanup.may_be_retried(error):
            return
        if not self._begin():
            return
        self._cleanups[cleanup] = None
        if cleanup.may_answer(error):
            cleanup.outcome = self._outcomes[first] = Pending()

    def _begin(self) -> bool:
        """Start the task, unless it runs; return False if the ``Locks`` is closed."""
        if self._key is None:
            # Registered like a request for a grant, so that closing calls ``_close``
            # while there is a connection (test_a_release_that_failed_is_asked_again
            # _at_the_end).
            try:
                self._key = self._in_flight.begin(self._close)
            except Closed:
                return False
            self._task.start()
        return True

    def _close(self) -> None:
        for cleanup in list(self._cleanups):
            # Also what is under way: it may be lost, and no other repetition follows
            # (test_closed_while_it_is_asked_again).
            if cleanup.repeatable or not cleanup.in_flight:
                cleanup.retry().log_failure()
        self._closed = True
        self._task.wake()

    async def _run(self) -> None:
        attempt = 0
        try:
            while self._cleanups:
                pause = back_off(attempt, random())
                await self._task.sleep_until(self._clock.now() + pause)
                if self._closed:
                    return
                attempt = 0 if await self._retry_some() else attempt + 1
        finally:
            # Also if this task was cancelled (by a loop that ends, or a program that
            # cancels all tasks): tasks that wait in ``outcome`` must not hang.
            key, self._key = self._key, None
            self._in_flight.end(key)
            for cleanup in self._cleanups:
                self._set_outcome(cleanup)
            if self._cleanups and not self._closed:
                self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        # A program may cancel all of its tasks and go on
        # (test_a_program_that_cancels_all_its_tasks_stops_no_repetition).
        if self._cleanups:
            self._begin()

    async def _retry_some(self) -> bool:
        now = self._clock.now()
        for cleanup in [one for one in self._cleanups if one.expires <= now]:
            del self._cleanups[cleanup]
            self._set_outcome(cleanup)
        idle = [cleanup for cleanup in self._cleanups if not cleanup.in_flight]
        room = MAX_REQUESTS_IN_FLIGHT - (len(self._cleanups) - len(idle))
        some, sent = idle[: max(0, room)], InFlight()
        for cleanup in some:
            cleanup.in_flight = True
            self.retried += 1
            if log.isEnabledFor(logging.DEBUG):
                where, error = cleanup.resource.label, str(cleanup.error)
                event = "cleanup_retried"
                log_event(log, event, logging.DEBUG, resource=where, error=error)
            sent.add(cleanup.retry()).add_done_callback(partial(self._retried, cleanup))
        # Not until all have answered: one that hangs must not keep the others from
        # their next turn (test_one_that_is_not_answered_keeps_no_other_back).
        with anyio.move_on_after(MAX_WAIT_FOR_REPLY):
            await sent.wait_closed()
        return not any(cleanup in self._cleanups for cleanup in some)

    def _retried(self, cleanup: _PendingCleanup, answer: Pending[Any]) -> None:
        cleanup.in_flight = False
        if cleanup not in self._cleanups:
            return  # the lease is over
        del self._cleanups[cleanup]
        error = answer.error
        if error is None:
            self._set_outcome(cleanup, answer)
            return
        cleanup.error, cleanup.failures = error, cleanup.failures + 1
        if cleanup.failures >= MAX_RETRIES or not cleanup.may_answer(error):
            self._set_outcome(cleanup)
        if cleanup.may_be_retried(error):
            # Put back last, so that requests which keep failing cannot use up
            # MAX_REQUESTS_IN_FLIGHT before the others had their turn.
            self._cleanups[cleanup] = None
        else:
            where = cleanup.resource.label
            log_event(log, "release_failed", resource=where, error=str(error))

    def _set_outcome(
        self, cleanup: _PendingCleanup, answer: Pending[Any] | None = None
    ) -> None:
        outcome, cleanup.outcome = cleanup.outcome, None
        if outcome is None:
            return
        del self._outcomes[cleanup.first]
        if answer is None:
            outcome.set_exception(cleanup.error)
        else:
            outcome.set_result(answer.result())
