"""Requests over a session of cassandra-driver, awaited on asyncio and trio alike.

The driver calls back: in the loop, where that reads the sockets (``reading.py``), or
in another thread, as it does where the session is the user's. Nothing here blocks, and
no request costs a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from aiorwlock_remote.backends.cassandra import errors
from aiorwlock_remote.backends.cassandra.callback_queue import CallbackQueue
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
from aiorwlock_remote.backends.cassandra.pages import (
    PagedRequest,
    PendingRows,
    ReplyHandler,
)
from aiorwlock_remote.backends.cassandra.requests import Request, Rows
from aiorwlock_remote.backends.cassandra.socket_reader import SocketReader
from aiorwlock_remote.ports import EventLoop

ONE: int = ConsistencyLevel.ONE


def consistency(name: str) -> int:
    """The driver's number of a consistency level."""
    level: int = ConsistencyLevel.name_to_value[name]
    return level


def execution_profile(options: Options) -> dict[str, Any]:
    """What an execution profile must say for us: nothing repeated, rows as dicts."""
    return {
        "retry_policy": FallthroughRetryPolicy(),
        "consistency_level": consistency(options.consistency),
        "serial_consistency_level": consistency(options.serial_consistency),
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
        self._serial = consistency(options.serial_consistency)
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
        statement.consistency_level = consistency(level)
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
        request = Request(SimpleStatement(cql, consistency_level=ONE), None)
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
