"""``SyncAppLocks``: the ``Locks`` of an application with synchronous handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import random
from time import monotonic
from typing import Any, cast, final

from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import BackendUnavailable, LockError
from aiorwlock_remote.integrations._app_locks import MAX_PAUSE
from aiorwlock_remote.integrations._http import (
    HEALTHY,
    HoldSpec,
    JsonAnswer,
    SeenHolds,
    answer,
    log,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.outage import may_pass
from aiorwlock_remote.sync import Held, Locks


@final
class SyncAppLocks:
    """The ``Locks`` of one application, opened when a request needs it first.

    Invariants (test_flask.py):

    - Each process opens its own, also behind a server that loads the application before
      its workers fork.
    - While the store is down, one thread at a time tries to connect, and none before
      the pause after the last failure is over; the others fail at once.
    """

    def __init__(self, connect: Callable[[], Locks]) -> None:
        self.seen: SeenHolds = SeenHolds()
        self._connect = connect
        self._one = threading.Lock()
        self._locks: Locks | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._outage: LockError | None = None

    @property
    def locks(self) -> Locks:
        """The open ``Locks``.

        Raises:
            BackendUnavailable: the store could not be reached yet.
            LockError: another error of ``connect``.
        """
        if self._locks is None:
            with self._one:
                if self._locks is None:
                    self._locks = self._open()
        return self._locks

    def close(self) -> None:
        """Close the ``Locks``; the next request opens another."""
        with self._one:
            locks, self._locks = self._locks, None
            self._failures, self._outage, self._retry_at = 0, None, 0.0
        if locks is not None:
            locks.close()

    @contextmanager
    def hold(self, spec: HoldSpec, values: Mapping[str, object]) -> Iterator[Held]:
        """Hold the lock of ``spec`` in the block; ``values``: of its parameters.

        Raises:
            NamesNoLock: a parameter cannot be converted to its type.
            LockError: the lock was not obtained, or lost.
        """
        # The names of the synchronous API are the same.
        acquisition: Any = spec.acquisition(cast("Any", self.locks), values)
        with acquisition as held:
            since = monotonic()
            try:
                yield held
            finally:
                self.seen.add(held.resource, spec.own_lease, monotonic() - since)

    def health(self) -> JsonAnswer:
        """Return the answer to a readiness probe; raise an error that shows a bug."""
        try:
            self.locks.mutex("health", "check").locked()
        except LockError as error:
            answered = self.answer(error, level=logging.DEBUG)
            if answered is None:
                raise
            return answered
        return HEALTHY

    def answer(
        self, error: LockError, *, level: int = logging.WARNING
    ) -> JsonAnswer | None:
        """Return the response to an error, as the function ``answer`` does."""
        # An outage before the first connection is logged once, by `_open`.
        if self._failures:
            level = logging.DEBUG
        return answer(error, self.seen, level=level)

    def _open(self) -> Locks:
        if monotonic() < self._retry_at:
            raise BackendUnavailable(
                what=f"no connection to the store: {self._outage}", nothing_done=True
            ) from self._outage
        try:
            locks = self._connect()
        except LockError as exc:
            if not may_pass(exc):
                raise
            if not self._failures:
                log_event(log, "store_down_at_start", error=str(exc))
            pause = back_off(self._failures, random(), longest=MAX_PAUSE)
            self._failures += 1
            self._outage, self._retry_at = exc, monotonic() + pause
            raise
        if self._failures:
            log_event(log, "store_connected", logging.INFO, attempts=self._failures + 1)
        self._failures, self._outage = 0, None
        return locks
