"""``SyncAppLocks``: the ``Locks`` of an application with synchronous handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, cast, final

from aiorwlock_remote.errors import BackendError, LockError
from aiorwlock_remote.integrations._http import (
    HEALTHY,
    HoldSpec,
    JsonAnswer,
    SeenHolds,
    answer,
    note_release,
)
from aiorwlock_remote.sync import Held, Locks
from aiorwlock_remote.sync.twins import is_down


@final
class SyncAppLocks:
    """The ``Locks`` of one application, opened when a request needs it first.

    Invariants (test_flask.py):

    - Each process opens its own, also behind a server that loads the application before
      its workers fork.
    - While the store is down, one thread at a time tries to connect, and none before
      the pause after the last failure is over; the others fail at once
      (``sync.twins.Opener``).
    """

    def __init__(self, connect: Callable[[], Locks]) -> None:
        self.seen: SeenHolds = SeenHolds()
        self._connect = connect
        self._one = threading.Lock()
        self._locks: Locks | None = None

    @property
    def locks(self) -> Locks:
        """The ``Locks``; raise the errors of ``connect``."""
        if self._locks is None:
            with self._one:
                if self._locks is None:
                    self._locks = self._connect()
        return self._locks

    def close(self) -> None:
        """Close the ``Locks``; the next request opens another."""
        with self._one:
            locks, self._locks = self._locks, None
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
        done = ""
        try:
            with acquisition as held:
                since = monotonic()
                try:
                    yield held
                    done = held.resource
                finally:
                    self.seen.add(held.resource, spec.own_lease, monotonic() - since)
        except BackendError as exc:
            if done:
                note_release(exc, done)
            raise

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
        # An outage before the first connection is logged once, by the ``Locks``.
        if self._locks is not None and is_down(self._locks):
            level = logging.DEBUG
        return answer(error, self.seen, level=level)
