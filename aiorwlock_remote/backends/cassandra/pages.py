"""A request whose answer comes in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.backends.cassandra import errors
from aiorwlock_remote.backends.cassandra.callback_queue import CallbackQueue
from aiorwlock_remote.backends.cassandra.requests import Request, Rows


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
