"""``AppLocks``: the ``Locks`` of a web application, open while the application runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import random
from time import monotonic
from types import TracebackType
from typing import final

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
)
from aiorwlock_remote.integrations._http import (
    ErrorResponse,
    HoldSpec,
    SeenHolds,
    answer,
    log,
)
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.client import Locks, default_lease
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.outage import may_pass
from aiorwlock_remote.runtime.event_loop import current_event_loop

MAX_PAUSE = 5.0
"""Longest pause, in seconds, between two attempts to connect while the store is down.
"""

HEALTH_TIMEOUT = 2.0
"""Seconds for which a health check waits for the store."""


@final
class Holding:
    """A lock that is held in an ``async with``, and for how long; made by ``hold``."""

    def __init__(
        self, acquisition: Acquisition, seen: SeenHolds, lease: float | None
    ) -> None:
        self._acquisition = acquisition
        self._seen = seen
        self._lease = lease
        self._resource = ""
        self._since = 0.0

    async def __aenter__(self) -> Held:
        held = await self._acquisition.__aenter__()
        self._resource, self._since = held.resource, monotonic()
        return held

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._seen.add(self._resource, self._lease, monotonic() - self._since)
        await self._acquisition.__aexit__(exc_type, exc, traceback)


@final
class AppLocks:
    """The ``Locks`` of one application, from its start to its end.

    Invariants (test_app_locks.py):

    - With ``required``, the application starts only if the store can be reached. Else
      an outage at the start is logged once, and the ``Locks`` is opened later.
    - An application that ends, or whose start is cancelled or fails, leaves no
      ``Locks`` open and no attempt to connect running.
    """

    def __init__(
        self,
        connecting: AbstractAsyncContextManager[Locks],
        *,
        required: bool = True,
        not_started: str = "its lifespan did not run",
    ) -> None:
        """Keep what ``connect(…)`` returned; open nothing.

        Args:
            connecting: opened when the application starts.
            required: whether the application starts only if the store can be reached.
            not_started: the hint of the error when the application has not started.

        Raises:
            ConfigurationError: ``connecting`` is not what ``connect(…)`` returns.
        """
        # Other context managers of a ``Locks`` can be entered once only.
        wanted = AbstractAsyncContextManager if required else Connecting
        given: object = connecting
        if not isinstance(given, wanted):
            raise ConfigurationError(
                what=f"no locks can be opened from {type(given).__name__}",
                hint="add_locks(app, connect(…))",
            )
        self._connecting = connecting
        self._required = required
        self._not_started = not_started
        self._locks: Locks | None = None
        self._outage: LockError | None = None
        self._seen = SeenHolds()

    @property
    def opened(self) -> bool:
        """Whether the application has started, with or without its store."""
        return self._locks is not None or self._outage is not None

    @property
    def locks(self) -> Locks:
        """The open ``Locks``.

        Raises:
            ConfigurationError: the application has not started.
            BackendUnavailable: the store could not be reached since the start.
        """
        if self._locks is not None:
            return self._locks
        if self._outage is None:
            raise ConfigurationError(
                what="the application has no locks yet", hint=self._not_started
            )
        raise BackendUnavailable(
            what=f"no connection to the store since the application started: "
            f"{self._outage}",
            nothing_done=True,
        ) from self._outage

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the ``Locks`` open; without ``required`` also while the store is down.

        The two halves may run in different tasks, as those of a fixture of
        pytest-asyncio do.
        """
        self._locks, self._outage = None, None
        try:
            self._locks = await self._connecting.__aenter__()
        except LockError as exc:
            if self._required or not may_pass(exc):
                raise
            self._outage = exc
            log_event(log, "store_down_at_start", error=str(exc))
        later = BackgroundTask(current_event_loop(), self._connect_later)
        if self._locks is None:
            later.start()
        try:
            yield
        finally:
            later.stop()
            await later.wait_closed()
            if self._locks is not None:
                await self._connecting.__aexit__(*sys.exc_info())

    def hold(
        self,
        spec: HoldSpec,
        values: Mapping[str, object],
        gone: Callable[[], Awaitable[object]] | None = None,
    ) -> Holding:
        """Return a context manager that holds the lock of ``spec``.

        Entering it raises ``AcquireAbandoned`` if ``gone()`` returned meanwhile.

        Args:
            spec: what is held, and how.
            values: the parameters of the request's path, by name.
            gone: returns when the client has left, if that can be known.

        Raises:
            PathNamesNoLock: a parameter cannot be converted to its type.
            ConfigurationError: the options contradict those of the ``Locks``.
            BackendUnavailable: the store could not be reached since the start.
        """
        acquisition = spec.acquisition(self.locks, values)
        if gone is not None:
            acquisition = acquisition.unless(gone)
        return Holding(acquisition, self._seen, spec.lease(self.locks))

    def answer(
        self, error: LockError, *, level: int = logging.WARNING
    ) -> ErrorResponse | None:
        """Return the response to an error, as the function ``answer`` does.

        An outage that was logged at the start is not logged with each request.
        """
        if self._locks is None:
            level = logging.DEBUG
        else:
            self._seen.default_lease = default_lease(self._locks)
        return answer(error, self._seen, level=level)

    async def check(self) -> None:
        """Ask the store for one record, and change nothing.

        Raises:
            LockError: no reply within ``HEALTH_TIMEOUT``, or the reply is an error.
        """
        with anyio.move_on_after(HEALTH_TIMEOUT) as scope:
            await self.locks.mutex("health", "check").locked()
        if scope.cancelled_caught:
            raise BackendUnavailable(
                what=f"the store did not answer in {HEALTH_TIMEOUT:g} s",
                nothing_done=True,
            )

    async def _connect_later(self) -> None:
        attempt = 0
        while self._locks is None:
            await anyio.sleep(back_off(attempt, random(), longest=MAX_PAUSE))
            attempt += 1
            try:
                self._locks = await self._connecting.__aenter__()
            except LockError as exc:
                # An error that no retry mends comes from the store as well, whose
                # schema or rights are mended while this application runs
                # (test_a_store_that_comes_back_unfit_is_said_once).
                if type(exc) is not type(self._outage):
                    log_event(log, "store_still_unusable", error=str(exc))
                self._outage = exc
            except Exception:  # noqa: BLE001 - the next attempt may get through
                log_event(log, "store_failed", logging.ERROR, exc_info=True)
        log_event(log, "store_connected", logging.INFO, attempts=attempt)


def no_locks() -> ConfigurationError:
    """Return the error of an application for which ``add_locks`` was not called."""
    return ConfigurationError(
        what="the application has no locks", hint="add_locks(app, connect(…))"
    )
