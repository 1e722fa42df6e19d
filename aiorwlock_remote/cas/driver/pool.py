"""A database driver's interface, a pool of its connections, and calls with time limits.

All objects of this module belong to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
import select
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event

if TYPE_CHECKING:
    from aiorwlock_remote.cas.driver.external_pool import ExternalPool

CLOSE_TIMEOUT = 1.0
"""Seconds that an orderly close of a connection may take before it is aborted."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

T = TypeVar("T")
C = TypeVar("C")
Failure = BackendError | ConfigurationError


class Driver(ABC, Generic[C]):
    """Base of the adapters of asyncio database drivers, such as asyncpg."""

    package: ClassVar[str]
    """Name of the driver in SQLAlchemy's URLs, such as ``asyncpg``."""
    pool_hint: ClassVar[str]
    """Code with which a user creates a pool or an engine of this driver, for hints."""
    options: ConnectionOptions

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options

    @abstractmethod
    async def connect(self) -> C:
        """Open a connection and log in. The caller limits the time."""

    @abstractmethod
    async def close(self, connection: C) -> None:
        """Log out and close the connection. The caller limits the time."""

    @abstractmethod
    def abort(self, connection: C) -> None:
        """Close the connection at once, without logout. A call under way fails."""

    @abstractmethod
    def is_healthy(self, connection: C) -> bool:
        """Return False if the connection without a request has ended. Sends nothing."""

    def is_broken(self, error: BaseException) -> bool:
        """Return True if a call that failed with ``error`` broke its connection."""
        raise NotImplementedError

    @abstractmethod
    def map_error(self, error: BaseException) -> Failure:
        """Return this library's error for an exception raised during a request."""

    @abstractmethod
    def schema_statements(self) -> Iterable[str]:
        """Return the statements that create the two tables, without grants."""

    @abstractmethod
    async def execute(self, statement: str, connection: C) -> None: ...

    @abstractmethod
    def lend(self, given: object) -> ExternalPool[C]:
        """Adapt a user's pool or engine; raise ``ConfigurationError`` for others."""

    def map_connect_error(self, error: BaseException) -> Failure:
        """Return this library's error for an exception of connecting or borrowing."""
        failure = self.map_error(error)
        if isinstance(failure, BackendError):
            failure.nothing_done = True
        return failure

    def borrowed(self, connection: C) -> None:
        """Prepare a connection that was borrowed from the user's pool.

        Raise ``ConfigurationError`` if no request can be committed on the connection.
        """

    def returning(self, connection: C, *, usable: bool) -> None:
        """Undo ``borrowed``; ``usable``: False if the connection will be closed."""

    def runner(self, source: ConnectionSource[C]) -> PooledRunner[C]:
        """Return the object that runs requests over the connections of ``source``."""
        return PooledRunner(source, self)


class ConnectionSource(Protocol[C]):
    """Port: source of connections for requests, our own pool or the user's.

    ``at_once`` is how many connections one batch of requests may use at a time.
    """

    at_once: int

    async def take(self) -> C:
        """Return a connection that no other request uses.

        Raises ``BackendUnavailable`` if none is free for ``connect_timeout`` seconds,
        or the driver's error if connecting fails.
        """

    async def give_back(self, connection: C) -> None: ...

    async def drop(self, connection: C) -> None:
        """Close and forget a connection that must not be used again, its call ended."""

    def abandon(self, connection: C) -> None:
        """Abort and forget a connection whose call does not end, without waiting."""

    async def close(self) -> None:
        """Close our own connections, or wait until borrowed ones are back."""


class ConnectionPool(Generic[C]):
    """Pool of our own connections, opened when needed and kept open.

    Invariants, each with a test in ``tests/cas/test_pool.py`` that fails without it:

    * A connection serves one request at a time, and waiting requests are served in
      their order (``test_one_is_used_again_and_by_one_at_a_time``).
    * A connection that ended while it was idle is not handed out
      (``test_one_that_died_while_idle_is_not_used``), nor one that ended on its way to
      the request (``test_one_that_died_on_its_way_is_not_used``).
    * If the server refuses a new connection, the request waits until an open connection
      is free; it fails with the refusal only if no connection is open or the time is
      over (``test_who_is_not_let_in_gets_what_comes_free``,
      ``test_when_none_is_left_all_get_the_reason``).
    * A connection that is opened too late, or after the pool was closed, is aborted
      (``test_one_that_is_too_late_is_ended``,
      ``test_one_that_comes_after_the_end_is_ended``).
    * A closed pool fails requests at once, with ``nothing_done``
      (``test_closed_it_gives_none_and_waits_for_none``).
    * A task that is cancelled, by a program that cancels all of its tasks, takes no
      connection along (``test_who_is_cancelled_while_it_waits_takes_none_along``,
      ``test_an_opening_that_is_cancelled_is_done_again``,
      ``test_a_close_that_is_cancelled_ends_them_all``).
    """

    def __init__(self, driver: Driver[C], most: int) -> None:
        self.at_once: int = most
        self._driver = driver
        self._where = driver.options.where
        self._timeout = driver.options.connect_timeout
        self._open = 0
        self._closed = False
        self._idle: list[C] = []
        # Waiting requests in order; True once a connection is being opened for one.
        self._waiting: dict[asyncio.Future[C], bool] = {}
        self._refused: dict[asyncio.Future[C], BaseException] = {}

    @property
    def state(self) -> str:
        """How many connections are open, or being opened, and how many are idle."""
        return f"{self._open} open, {len(self._idle)} idle"

    async def take(self) -> C:
        if self._closed:
            raise BackendUnavailable(
                what=f"{self._where}: the pool is closed", nothing_done=True
            )
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_healthy(connection):
                return connection
            self.abandon(connection)
        connection = await self._next()
        if self._driver.is_healthy(connection):
            return connection
        # It ended while the event loop did not run, after it was handed to this request
        # (test_one_that_died_on_its_way_is_not_used). One more attempt, not a hundred:
        # the server may end all connections as soon as they are open.
        self.abandon(connection)
        return await self._next()

    async def _next(self) -> C:
        turn: asyncio.Future[C] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = False
        self._open_more()
        try:
            came = await in_time(turn, self._timeout)
        except asyncio.CancelledError:
            self._remove(turn)
            if turn.done() and turn.exception() is None:
                self._hand_on(turn.result())
            raise
        if not came:
            raise self._remove(turn) or none_free(self._where, self._timeout)
        return turn.result()

    async def give_back(self, connection: C) -> None:
        self._hand_on(connection)

    async def drop(self, connection: C) -> None:
        self.abandon(connection)

    def abandon(self, connection: C) -> None:
        self._log("connection_lost")
        self._driver.abort(connection)
        self._open -= 1
        # A server that takes no more clients may have room now: try again for one of
        # the refused requests (test_who_is_not_let_in_gets_what_comes_free).
        refused = next(iter(self._refused), None)
        if refused is not None:
            del self._refused[refused]
            self._waiting[refused] = False
        self._open_more()

    async def connect(self) -> None:
        """Open a connection before the first request needs one; ignore a failure."""
        # The error is not lost: the first request tries again and raises it.
        with suppress(Exception):
            await self.give_back(await self.take())

    def abort(self) -> None:
        """Close the pool: abort idle connections now, others when they are free."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            self._driver.abort(connection)

    async def close(self) -> None:
        """Close the pool: log out idle connections; abort others when they are free."""
        self._closed = True
        idle, self._idle = self._idle, []
        closing = [asyncio.ensure_future(self._driver.close(one)) for one in idle]
        try:
            if closing:
                await asyncio.wait(closing, timeout=CLOSE_TIMEOUT)
        finally:
            for connection, ending in zip(idle, closing, strict=True):
                if not ending.done() or ending.cancelled() or ending.exception():
                    ending.add_done_callback(ignore_result)
                    self._driver.abort(connection)
        self._log("connection_closed")

    def _hand_on(self, connection: C) -> None:
        # The pool was closed while the request was under way: nothing waits any more
        # for an orderly end.
        if self._closed:
            self._driver.abort(connection)
            return
        turn = next(iter(self._waiting), None)
        if turn is None:
            self._idle.append(connection)
        else:
            self._remove(turn)
            turn.set_result(connection)

    def _open_more(self) -> None:
        # Each waiting request causes one attempt: a server that is down is not asked
        # again and again on behalf of one request.
        turn = next((turn for turn, tried in self._waiting.items() if not tried), None)
        if turn is not None and self._open < self.at_once:
            self._waiting[turn] = True
            self._open += 1
            spawn_detached(self._connected(), partial(self._opened, turn))

    def _opened(self, turn: asyncio.Future[C], opening: asyncio.Future[C]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._log("connection_opened")
            self._hand_on(opening.result())
            return
        self._open -= 1
        # The request may have got a connection that came free meanwhile, or have been
        # cancelled, too.
        if turn in self._waiting:
            if opening.cancelled():
                self._waiting[turn] = False
            elif error := opening.exception():
                self._refused[turn] = error
        if not self._open:
            self._fail_refused()
        self._open_more()

    def _log(self, event: str) -> None:
        log_event(log, event, logging.DEBUG, server=self._where, connections=self._open)

    def _remove(self, turn: asyncio.Future[C]) -> BaseException | None:
        self._waiting.pop(turn, None)
        return self._refused.pop(turn, None)

    def _fail_refused(self) -> None:
        for turn, error in list(self._refused.items()):
            self._remove(turn)
            turn.set_exception(error)

    async def _connected(self) -> C:
        connecting = asyncio.ensure_future(self._driver.connect())
        give_up = partial(cancel_unwanted, self._driver.abort)
        if not await in_time(connecting, self._timeout, give_up):
            raise not_connected(self._where, self._timeout)
        return connecting.result()


class PooledRunner(Generic[C]):
    """Runs each request on a connection of its own, with a time limit.

    A call is never cancelled: what becomes of its connection then is up to the driver.
    When its time is over the connection is aborted, which ends the call with an error;
    whether the server has carried out the request is then not known.
    """

    def __init__(self, source: ConnectionSource[C], driver: Driver[C]) -> None:
        self._source = source
        self._driver = driver
        self._seconds = driver.options.call_timeout
        # The connections with a call under way, and when its time is over: in that
        # order, because all calls may take equally long. They have one timer. One for
        # each would be dear: a loop keeps cancelled timers, in order, until their time
        # has come or until they are most of its timers
        # (test_a_call_costs_neither_a_task_nor_a_timer).
        self._due: dict[C, float] = {}
        self._timed = False

    async def carry(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Run ``work(connection)`` on a free connection; return its result.

        After ``call_timeout`` the connection is aborted. Raises this library's errors.
        """
        driver, broken = self._driver, False
        try:
            connection = await self._source.take()
        except (BackendError, ConfigurationError):
            raise
        except Exception as exc:
            raise driver.map_connect_error(exc) from exc
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self._seconds
        if not self._timed:
            self._set_timer(loop)
        try:
            return await work(connection)
        except Exception as exc:
            broken = driver.is_broken(exc)
            if broken and connection not in self._due:
                raise no_answer(driver.options) from exc
            raise driver.map_error(exc) from exc
        except BaseException:
            # The loop is about to end: an answer may still be on its way.
            broken = True
            raise
        finally:
            # An answer may arrive in the moment in which the timer aborts its
            # connection (test_an_answer_in_the_last_moment_counts).
            aborted = self._due.pop(connection, None) is None
            if broken or aborted:
                await self._source.drop(connection)
            else:
                await self._source.give_back(connection)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._due:
            self._timed = True
            loop.call_at(next(iter(self._due.values())), self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed = False
        now = loop.time()
        late = next((which for which, due in self._due.items() if due <= now), None)
        if late is not None:
            del self._due[late]
        # Before ``abort``, which may raise: the other calls keep their time limits
        # (test_one_that_cannot_be_ended_costs_the_others_nothing).
        self._set_timer(loop)
        if late is not None:
            self._driver.abort(late)


def has_input(transport: Any) -> bool:  # noqa: ANN401 - asyncio's or uvloop's
    """Return True if a connection without a request has something to read.

    That is the end of the stream, or the server's last words. The event loop may not
    have run since they came, and the driver then believes that the connection is open
    (test_dead_connections.py).
    """
    sock: Any = transport.get_extra_info("socket")
    if sock is None or (number := sock.fileno()) < 0:
        return True  # closed meanwhile
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([number], [], [], 0)[0])
    waiting = select.poll()
    waiting.register(number, select.POLLIN)
    return bool(waiting.poll(0))


async def in_time(
    future: asyncio.Future[T],
    seconds: float,
    give_up: Callable[[asyncio.Future[T]], object] | None = None,
) -> bool:
    """Wait at most ``seconds`` for ``future`` without cancelling it; True if done.

    ``give_up(future)`` is called if the time is over, or if the caller is cancelled:
    then ``future`` may be done, and what it brings is nobody's.
    """
    # ``asyncio.wait_for`` would cancel the future, and in Python 3.11 it may swallow a
    # cancellation of its caller.
    done: set[asyncio.Future[T]] = set()
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds)
    finally:
        if not done and give_up is not None:
            give_up(future)
    return bool(done)


def cancel_unwanted(discard: Callable[[T], object], future: asyncio.Future[T]) -> None:
    """Cancel ``future``; call ``discard`` with the result that it brings all the same.

    A driver may swallow the cancellation and connect, or a pool lend a connection.
    """

    def ended(_: object) -> None:
        if not future.cancelled() and future.exception() is None:
            discard(future.result())

    future.add_done_callback(ended)
    future.cancel()


def ignore_result(future: asyncio.Future[T]) -> None:
    """Fetch the future's exception, so that asyncio does not log it as unretrieved."""
    if not future.cancelled():
        future.exception()


_tasks: set[asyncio.Future[Any]] = set()  # the loop keeps only weak references


def spawn_detached(
    work: Awaitable[T], ended: Callable[[asyncio.Future[T]], object] | None = None
) -> None:
    """Run ``work`` as a task that nothing waits for, and keep a reference to it.

    ``ended(task)`` is called at its end, also if it was cancelled before it began.
    """
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    if ended is not None:
        task.add_done_callback(ended)


def none_free(where: str, seconds: float) -> BackendUnavailable:
    """Return the error: no connection at ``where`` became free in ``seconds``."""
    return BackendUnavailable(
        what=f"{where}: no connection was free in {seconds:g} s", nothing_done=True
    )


def not_connected(where: str, seconds: float) -> BackendUnavailable:
    """Return the error: no connection to ``where`` was opened in ``seconds``."""
    return BackendUnavailable(
        what=f"{where}: not connected in {seconds:g} s", nothing_done=True
    )


def no_answer(options: ConnectionOptions) -> BackendUnavailable:
    """Log and return the error of a request that exceeded ``call_timeout``."""
    log_event(
        log,
        "request_timed_out",
        logging.DEBUG,
        server=options.where,
        seconds=options.call_timeout,
    )
    return BackendUnavailable(what=f"{options.where} does not answer")
