"""Requests over a session of cassandra-driver, awaited on asyncio and trio alike.

The driver reads its sockets in a thread of its own, and calls back there. That costs no
more than reading them in the event loop did (benchmarks/HISTORY.md). ``ask`` never
blocks, and no request costs a thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import driver, errors
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.core.value import value
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

Row = Mapping[str, Any]
Rows = Sequence[Row]

APPLIED = "[applied]"

# The driver's number of each consistency level.
LEVELS: Mapping[str, int] = driver.ConsistencyLevel.name_to_value


def execution_profile(options: Options) -> dict[str, Any]:
    """Return the arguments of a driver's execution profile: no retries, dict rows."""
    return {
        # A transaction that is sent twice may be refused because of its first copy.
        "retry_policy": driver.FallthroughRetryPolicy(),
        "consistency_level": LEVELS[options.consistency],
        "serial_consistency_level": LEVELS[options.serial_consistency],
        "request_timeout": options.request_timeout,
        "row_factory": driver.dict_factory,
        "speculative_execution_policy": driver.NoSpeculativeExecutionPolicy(),
        "continuous_paging_options": None,
    }


@value
class Request:
    """A statement with its values, which ``repr`` hides: they may hold a ticket.

    ``node`` is the host to send it to; None: one that the driver's policy chooses.
    """

    statement: driver.Statement
    values: Sequence[object] | None
    node: object = None

    def __repr__(self) -> str:
        return f"Request({self.statement.query_string!r})"


class PendingRows(Pending[Rows]):
    """Pending rows of a request. ``node``: the host that has answered, else None."""

    __slots__ = ("node",)

    def __init__(self) -> None:
        super().__init__()
        self.node: object = None


class CallbackQueue:
    """Thread-safe queue of calls for an event loop; one wake-up runs all of them.

    A wake-up is a system call, in which the driver's thread releases the interpreter's
    lock. With one for each answer, it would wait for the loop's thread each time.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[[Any], object], object]] = deque()
        self._woken = False

    def put(self, function: Callable[[Any], object], answer: object) -> None:
        """Queue ``function(answer)`` to run in the event loop. For any thread."""
        self._calls.append((function, answer))
        if not self._woken:  # else the loop has not begun to empty the queue yet
            self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._loop.call_soon(self._empty)

    def _empty(self) -> None:
        self._woken = False
        while self._calls:
            function, answer = self._calls.popleft()
            try:
                function(answer)
            except BaseException:
                # The loop reports it; the answers behind it must still be delivered.
                self._wake()
                raise


class ReplyHandler:
    """Receives the driver's reply to a request, and settles its ``pending`` rows.

    The driver calls ``came`` with rows, or ``failed`` with its exception, in any
    thread; ``pending`` is settled in the event loop that awaits it.
    """

    __slots__ = ("_callbacks", "_where", "future", "pending")

    def __init__(self, callbacks: CallbackQueue, where: str) -> None:
        self.pending: PendingRows = PendingRows()
        # The driver's ResponseFuture refers to this object. Each answer breaks the
        # cycle, or a request's thirty objects would wait for the garbage collector.
        self.future: Any = None
        self._callbacks = callbacks
        self._where = where

    def came(self, rows: Rows | None) -> None:
        future, self.future = self.future, None
        self.pending.node = future.coordinator_host
        self._callbacks.put(self.pending.set_result, rows or ())

    def failed(self, exc: BaseException) -> None:
        self.future = None
        error = errors.from_driver(exc, self._where)
        error.__cause__ = exc
        if isinstance(exc, driver.OperationTimedOut):
            log_event(
                log, "request_timed_out", logging.DEBUG, cluster=self._where, error=exc
            )
        self._callbacks.put(self.pending.set_exception, error)


class SessionClient:
    """Sends requests over a driver session, this library's own or the user's.

    The user's default retry policy never applies here: it would send a lightweight
    transaction to the next host when a connection breaks, and that host would refuse it
    because of our own ticket (test_a_session_of_the_users_is_used_and_left_alone).
    """

    def __init__(
        self,
        session: driver.Session,
        profile: driver.Profile | None,
        options: Options,
    ) -> None:
        """Use a connected session; ``options`` say timeout, consistency and its name.

        ``profile`` applies to all requests; None: the session has legacy settings and
        allows none.
        """
        self._session = session
        self._profile = driver.EXEC_PROFILE_DEFAULT if profile is None else profile
        self._timeout = options.request_timeout
        self._serial = LEVELS[options.serial_consistency]
        self._where = options.where
        self._callbacks: dict[EventLoop, CallbackQueue] = {}

    def prepare(self, cql: str, level: str) -> driver.Statement:
        """Prepare CQL for a consistency level, given by name. Blocks."""
        try:
            statement = self._session.prepare(cql)
        except Exception as exc:
            raise errors.from_driver(exc, self._where) from exc
        statement.consistency_level = LEVELS[level]
        statement.serial_consistency_level = self._serial
        # A session with legacy settings has no profile of ours that would set it.
        statement.retry_policy = driver.FallthroughRetryPolicy()
        return statement

    def run(self, request: Request) -> Rows:
        """Send a request and return its rows. Blocks."""
        try:
            rows = self._session.execute(
                request.statement,
                request.values,
                timeout=self._timeout,
                execution_profile=self._profile,
            )
        except Exception as exc:
            raise errors.from_driver(exc, self._where) from exc
        return list(rows)

    def ask(self, loop: EventLoop, request: Request) -> PendingRows:
        """Send a request without blocking; settle its rows in the event loop ``loop``.

        The result fails with ``BackendError``. Cancelling a task that awaits the result
        does not withdraw the request.
        """
        answer = self._answer(loop)
        self._send(request, answer)
        return answer.pending

    async def pages(
        self, loop: EventLoop, request: Request
    ) -> AsyncGenerator[Rows, None]:
        """Yield the rows of a large result in pages, each requested when needed."""
        page: bytes | None = None
        while True:
            answer = self._answer(loop)
            # Each page is a request of its own: the driver's own paging has a time
            # limit for the first page only, and waits for ever at a stopped node.
            future = self._send(request, answer, page)
            rows: Pending[Rows] = answer.pending
            yield await rows
            if future is None or not future.has_more_pages:
                return
            page = future.result().paging_state

    def _send(
        self, request: Request, answer: ReplyHandler, page: bytes | None = None
    ) -> Any:  # noqa: ANN401 - the driver's ResponseFuture, None if it was not sent
        try:
            future = self._session.execute_async(
                request.statement,
                request.values,
                timeout=self._timeout,
                execution_profile=self._profile,
                paging_state=page,
                host=request.node,
            )
        except Exception as exc:  # noqa: BLE001 - mapped by the handler
            answer.failed(exc)
            return None
        answer.future = future
        future.add_callbacks(answer.came, answer.failed)
        return future

    def _answer(self, loop: EventLoop) -> ReplyHandler:
        queue = self._callbacks.get(loop)
        if queue is None:
            queue = self._callbacks.setdefault(loop, CallbackQueue(loop))
        return ReplyHandler(queue, self._where)
