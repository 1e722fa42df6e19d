"""``AppLocks``: the ``Locks`` of a web application, open while the application runs."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from random import random
from types import FrameType
from typing import Any, final

import anyio

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, LockError
from aiorwlock_remote.integrations._holding import Holding, RequestHolds, ServerStops
from aiorwlock_remote.integrations._http import (
    HEALTHY,
    HoldSpec,
    JsonAnswer,
    SeenHolds,
    answer,
    log,
)
from aiorwlock_remote.locks.client import Locks, default_lease
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.outage import MAX_CONNECT_PAUSE, may_pass
from aiorwlock_remote.runtime.event_loop import current_event_loop

HEALTH_TIMEOUT = 2.0
"""Seconds for which a health check waits for the store."""


@contextmanager
def on_stop_signal(function: Callable[[], object]) -> Iterator[None]:
    """Call ``function`` in this event loop when a signal asks the server to stop.

    ASGI servers tell an application of their end when all requests are done. So in the
    main thread SIGTERM and SIGINT call ``function`` before the server's own handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = current_event_loop()
    replaced: dict[signal.Signals, tuple[Any, Any]] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        # Without a handler of the server's, the signal ends the process as it always
        # did (test_the_handlers_of_signals_are_as_before).
        if callable(before):
            handler = partial(_then, partial(loop.call_soon, function), before)
            signal.signal(number, handler)
            replaced[number] = handler, before
    try:
        yield
    finally:
        for number, (handler, before) in replaced.items():
            # Others may have put a handler around this one, which stays then, and only
            # passes the signal on.
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


def _then(
    first: Callable[[], object],
    second: Callable[[int, FrameType | None], object],
    number: int,
    frame: FrameType | None,
) -> None:
    first()
    second(number, frame)


@final
class AppLocks:
    """The ``Locks`` of one application, from its start to its end.

    Invariants (test_app_locks.py):

    - With ``required``, the application starts only if the store can be reached. Else
      an outage at the start is logged once, and the ``Locks`` is opened later.
    - After ``stop_waiting`` no request waits for a lock until the next start, and those
      that hold one are not touched (test_server_shutdown.py).
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
        self.seen: SeenHolds = SeenHolds()
        self.stopping: bool = False
        # Those whose holds are kept until all of the request has ended.
        self.late_endpoints: set[object] = set()
        self._waiting: set[anyio.CancelScope] = set()

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
        self._locks, self._outage, self.stopping = None, None, False
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
        gone: Callable[[], Awaitable[object]] = anyio.sleep_forever,
        *,
        holds: RequestHolds | None = None,
    ) -> Holding:
        """Return a context manager that holds the lock of ``spec``.

        Entering it raises ``AcquireAbandoned`` if ``gone()`` returned meanwhile, and
        ``ServerStops`` after ``stop_waiting``.

        Args:
            spec: what is held, and how.
            values: the parameters of the request, by name.
            gone: returns when the client has left.
            holds: those of the request, which keep the lock behind the block; None: the
                lock is released where the block ends.

        Raises:
            NamesNoLock: a parameter cannot be converted to its type.
            ConfigurationError: the options contradict those of the ``Locks``.
            BackendUnavailable: the store could not be reached since the start.
        """
        acquisition = spec.acquisition(self.locks, values)
        acquisition = acquisition.unless(partial(self._over, gone))
        lease = spec.lease(self.locks)
        return Holding(acquisition, self.seen, lease, self._is_stopping, holds)

    def stop_waiting(self) -> None:
        """Let every ``hold`` that waits raise ``ServerStops``, now and from now on."""
        if self.stopping:
            return
        self.stopping = True
        if self._waiting:
            log_event(log, "stopping", logging.INFO, waiting=len(self._waiting))
        for scope in self._waiting:
            scope.cancel()

    def answer(
        self, error: LockError, *, level: int = logging.WARNING
    ) -> JsonAnswer | None:
        """Return the response to an error, as the function ``answer`` does.

        An outage that was logged at the start, and the stop of the server, are not
        logged with each request.
        """
        if self._locks is None or isinstance(error, ServerStops):
            level = logging.DEBUG
        if self._locks is not None:
            self.seen.default_lease = default_lease(self._locks)
        return answer(error, self.seen, level=level)

    async def health(self) -> JsonAnswer:
        """Return the answer to a readiness probe; raise an error that shows a bug."""
        try:
            await self.check()
        except LockError as error:
            answered = self.answer(error, level=logging.DEBUG)
            if answered is None:
                raise
            return answered
        return HEALTHY

    async def check(self) -> None:
        """Ask the store for one record, and change nothing.

        Raises:
            ServerStops: the server was asked to stop.
            LockError: no reply within ``HEALTH_TIMEOUT``, or the reply is an error.
        """
        if self.stopping:
            raise ServerStops
        with anyio.move_on_after(HEALTH_TIMEOUT) as scope:
            await self.locks.mutex("health", "check").locked()
        if scope.cancelled_caught:
            raise BackendUnavailable(
                what=f"the store did not answer in {HEALTH_TIMEOUT:g} s",
                nothing_done=True,
            )

    def _is_stopping(self) -> bool:
        return self.stopping

    async def _over(self, gone: Callable[[], Awaitable[object]]) -> None:
        if self.stopping:
            return
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                await gone()
            finally:
                self._waiting.discard(scope)

    async def _connect_later(self) -> None:
        attempt = 0
        while self._locks is None:
            await anyio.sleep(back_off(attempt, random(), longest=MAX_CONNECT_PAUSE))
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


def has_locks() -> ConfigurationError:
    """Return the error of a second ``add_locks`` for an application."""
    return ConfigurationError(
        what="the application already has locks", hint="call add_locks once"
    )


def no_locks() -> ConfigurationError:
    """Return the error of an application for which ``add_locks`` was not called."""
    return ConfigurationError(
        what="the application has no locks", hint="add_locks(app, connect(…))"
    )
