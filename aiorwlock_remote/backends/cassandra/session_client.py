"""Requests over a session of cassandra-driver, awaited on asyncio and trio alike.

The driver calls back: in the loop, where that reads the sockets (``reading.py``), or
in another thread, as it does where the session is the user's. Nothing here blocks, and
no request costs a thread.

A request whose answer comes in pages.

What the cluster is asked, and what it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import errors
from aiorwlock_remote.backends.cassandra.driver import (
    EXEC_PROFILE_DEFAULT,
    ConsistencyLevel,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
    Profile,
    Session,
    SimpleStatement,
    Statement,
    dict_factory,
)
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.socket_reader import (
    CallbackQueue,
    SocketReader,
)
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.ports import EventLoop

Row = Mapping[str, Any]
Rows = Sequence[Row]

APPLIED = "[applied]"


@value
class Request:
    """A statement and its values, which may hold a ticket.

    ``node``: whom to ask; None: whom the driver's policy chooses. ``behind``: it has
    time until what was asked before it is answered.
    """

    statement: Statement
    values: Sequence[object] | None
    node: object = None
    behind: bool = False

    def to(self, node: object) -> Request:
        """The same, for that node."""
        return replace(self, node=node)

    def __repr__(self) -> str:
        return f"Request({self.statement.query_string!r})"


class Sender(Protocol):
    """What requests go over: a ``Wire``."""

    def send(
        self, request: Request, answer: ReplyHandler, page: bytes | None = None
    ) -> Any:  # noqa: ANN401 - the driver's ResponseFuture, None if it was not sent
        """Send it; ``answer`` is told, from any thread, this one included.

        ``page``: which page of its answer, if not the first.
        """


class PendingRows(Pending[Rows]):
    """The rows of an answer that is awaited."""

    __slots__ = ("node",)

    def __init__(self) -> None:
        """Not sent yet."""
        super().__init__()
        self.node: object = None
        """Who answered; None: nobody, or nobody knows."""


class ReplyHandler:
    """What becomes of one request, for whoever awaits it in a loop.

    ``future``: the driver's, which refers to this. So it is kept no longer than until
    the answer comes: what refers to each other waits for the garbage collector, and a
    request is some thirty objects.
    """

    __slots__ = ("_inbox", "_where", "future", "pending")

    def __init__(self, inbox: CallbackQueue, where: str) -> None:
        """``where``: the cluster, for messages."""
        self.pending: PendingRows = PendingRows()
        self.future: Any = None
        self._inbox = inbox
        self._where = where

    def came(self, rows: Rows | None) -> None:
        """These are its rows."""
        future, self.future = self.future, None
        self.pending.node = future.coordinator_host
        self._inbox.put(self.pending.set_result, rows or ())

    def failed(self, exc: BaseException) -> None:
        """There is none; the driver's error is the cause of ours."""
        self.future = None
        error = errors.from_driver(exc, self._where)
        error.__cause__ = exc
        self._inbox.put(self.pending.set_exception, error)


class PagedRequest:
    """Each page is a request of its own.

    The driver's ``start_fetching_next_page`` sets no time limit for any but the first,
    and waits for ever at a node that has stopped.
    """

    def __init__(
        self, wire: Sender, request: Request, answer: Callable[[], ReplyHandler]
    ) -> None:
        """Nothing is sent yet. ``answer``: makes one for each page."""
        self._wire = wire
        self._request = request
        self._answer = answer
        self._future: Any = None

    def first(self) -> Pending[Rows]:
        """Ask for the first page."""
        return self._page(None)

    def following(self) -> Pending[Rows] | None:
        """Ask for the next page, once the last one is there; None: there is none."""
        if self._future is None or not self._future.has_more_pages:
            return None
        return self._page(self._future.result().paging_state)

    def _page(self, page: bytes | None) -> Pending[Rows]:
        answer = self._answer()
        self._future = self._wire.send(self._request, answer, page)
        return answer.pending


CONSISTENCY_ONE: int = ConsistencyLevel.ONE


def consistency_level(name: str) -> int:
    """The driver's number of a consistency level."""
    level: int = ConsistencyLevel.name_to_value[name]
    return level


def execution_profile(options: Options) -> dict[str, Any]:
    """What an execution profile must say for us: nothing repeated, rows as dicts."""
    return {
        "retry_policy": FallthroughRetryPolicy(),
        "consistency_level": consistency_level(options.consistency),
        "serial_consistency_level": consistency_level(options.serial_consistency),
        "request_timeout": options.request_timeout,
        "row_factory": dict_factory,
        "speculative_execution_policy": NoSpeculativeExecutionPolicy(),
        "continuous_paging_options": None,
    }


class SessionClient:
    """A session, our own or the user's, as our requests see it.

    The user's default retry policy never reaches them: it would send a lightweight
    transaction to the next host when a connection breaks, and its answer "refused"
    would be about our own ticket.
    """

    def __init__(
        self,
        session: Session,
        profile: Profile | None,
        options: Options,
        reader: SocketReader | None = None,
    ) -> None:
        """``profile`` None: the session has legacy settings, and is ours.

        ``reader``: of the session's sockets, if the loop reads them.
        """
        self._session = session
        self._profile = EXEC_PROFILE_DEFAULT if profile is None else profile
        self._timeout = options.request_timeout
        self._serial = consistency_level(options.serial_consistency)
        self._where = options.where
        self._inboxes: dict[EventLoop, CallbackQueue] = {}
        self._reader = reader
        if reader is not None:
            self._inboxes[reader.inbox.host] = reader.inbox

    def prepare(self, cql: str, level: str) -> Statement:
        """A statement for this session, at that consistency level. Blocks.

        Raises:
            BackendError: the table or a column is not as it must be, or nobody answers.
        """
        try:
            statement = self._session.prepare(cql)
        except Exception as exc:
            raise errors.from_driver(exc, self._where) from exc
        statement.consistency_level = consistency_level(level)
        statement.serial_consistency_level = self._serial
        statement.retry_policy = FallthroughRetryPolicy()
        return statement

    def run(self, request: Request) -> Rows:
        """The rows of its answer. Blocks.

        Raises:
            BackendError: as the driver's error says.
        """
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

    def ask(self, host: EventLoop, request: Request) -> PendingRows:
        """Send it; the rows of its answer.

        Fails with ``BackendError``. Cancelling whoever awaits it takes nothing back.
        """
        answer = self._answer(host)
        self.send(request, answer)
        return answer.pending

    async def pages(self, host: EventLoop, request: Request) -> AsyncIterator[Rows]:
        """All rows of its answer, a page at a time; the next is asked for when wanted.

        Raises:
            BackendError: as the driver's error says.
        """
        pages = PagedRequest(self, request, partial(self._answer, host))
        page = pages.first()
        while True:
            rows = await page
            yield rows
            following = pages.following()
            if following is None:
                return
            page = following

    async def query(self, host: EventLoop, cql: str) -> Rows:
        """What a statement without values tells, from any one node."""
        request = Request(SimpleStatement(cql, consistency_level=CONSISTENCY_ONE), None)
        return await self.ask(host, request)

    def send(
        self, request: Request, answer: ReplyHandler, page: bytes | None = None
    ) -> Any:  # noqa: ANN401 - the driver's ResponseFuture, None if it was not sent
        """As ``Sender.send``."""
        reader = self._reader if request.behind else None
        try:
            if reader is not None:
                reader.behind = reader.in_loop
            future = self._session.execute_async(
                request.statement,
                request.values,
                timeout=self._timeout,
                execution_profile=self._profile,
                paging_state=page,
                host=request.node,
            )
        except Exception as exc:  # noqa: BLE001 - mapped by whoever asked
            answer.failed(exc)
            return None
        finally:
            if reader is not None:
                reader.behind = False
        answer.future = future
        future.add_callbacks(answer.came, answer.failed)
        return future

    def _answer(self, host: EventLoop) -> ReplyHandler:
        inbox = self._inboxes.get(host)
        if inbox is None:
            inbox = self._inboxes.setdefault(host, CallbackQueue(host))
        return ReplyHandler(inbox, self._where)
