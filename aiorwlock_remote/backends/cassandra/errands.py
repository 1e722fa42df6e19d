"""Requests on their way, and what follows them, in the driver's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from aiorwlock_remote.backends.cassandra import errors
from aiorwlock_remote.backends.cassandra.inbox import Inbox
from aiorwlock_remote.backends.cassandra.requests import Request, Rows, Then
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.pending import Pending


class Sender(Protocol):
    """What requests go over: a ``Wire``."""

    @property
    def where(self) -> str:
        """The cluster, for messages."""

    def send(
        self,
        request: Request,
        answered: Callable[[Rows | None], object],
        failed: Callable[[BaseException], object],
        page: bytes | None = None,
    ) -> Any:  # noqa: ANN401 - the driver's ResponseFuture, None if it was not sent
        """Send it; one of the two is called, from any thread, this one included.

        ``page``: which page of its answer, if not the first.
        """


class Errand:
    """A request, perhaps one beside it, and perhaps one that follows both."""

    def __init__(
        self,
        wire: Sender,
        inbox: Inbox,
        pending: Pending[list[Rows]],
        then: Then | None,
    ) -> None:
        """As ``Wire.ask``."""
        self._wire = wire
        self._inbox = inbox
        self._pending = pending
        self._then = then
        # The loop's thread sends and the driver's hears, which may be the faster one.
        self._lock = threading.Lock()
        self._first: Rows | None = None
        self._beside: Rows | None = None
        self._last: Rows | None = None
        self._waiting = False  # for what was sent beside it
        self._over = False

    def send(self, request: Request, beside: Request | None = None) -> None:
        """Send them, in this order."""
        self._waiting = beside is not None
        self._wire.send(request, self._answered, self._failed)
        if beside is not None:
            self._wire.send(beside, self._answered_beside, self._failed_beside)

    def _answered(self, rows: Rows | None) -> None:
        with self._lock:
            if self._first is None:
                self._first = rows or ()
            else:
                self._last = rows or ()
        self._go_on()

    def _answered_beside(self, rows: Rows | None) -> None:
        with self._lock:
            self._beside, self._waiting = rows or (), False
        self._go_on()

    def _failed_beside(self, exc: BaseException) -> None:
        del exc  # what was to be known can still be asked
        self._answered_beside(None)

    def _go_on(self) -> None:
        following: Request | None = None
        with self._lock:
            if self._first is None or self._over:
                return
            found = (self._first, self._beside, self._last)
            answers = [rows for rows in found if rows is not None]
            if self._then is not None:
                following = self._then(answers)
                if following is not None and self._waiting:
                    return
                self._then = None
            self._over = following is None
        if following is not None:
            self._wire.send(following, self._answered, self._failed)
        else:
            self._inbox.put(self._pending.resolve, answers)

    def _failed(self, exc: BaseException) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        error = errors.of(exc, self._wire.where)
        error.__cause__ = exc
        if self._first is not None and isinstance(error, BackendUnavailable):
            error = BackendUnavailable(what=error.what, hint=error.hint)
            error.__cause__ = exc
        self._inbox.put(self._pending.fail, error)


class Pages:
    """A request whose answer comes in pages.

    Each is a request of its own: the driver's ``start_fetching_next_page`` sets no time
    limit for any but the first, and waits for ever at a node that has stopped.
    """

    def __init__(self, wire: Sender, inbox: Inbox, request: Request) -> None:
        """Nothing is sent yet."""
        self._wire = wire
        self._inbox = inbox
        self._request = request
        self._future: Any = None
        self._pending: Pending[Rows] = Pending()

    def first(self) -> Pending[Rows]:
        """Ask for the first page."""
        return self._page(None)

    def following(self) -> Pending[Rows] | None:
        """Ask for the next page, once the last one is there; None: there is none."""
        if self._future is None or not self._future.has_more_pages:
            return None
        return self._page(self._future.result().paging_state)

    def _page(self, page: bytes | None) -> Pending[Rows]:
        self._pending = Pending()
        sent = self._wire.send(self._request, self._answered, self._failed, page)
        self._future = sent
        return self._pending

    def _answered(self, rows: Rows | None) -> None:
        self._inbox.put(self._pending.resolve, rows or ())

    def _failed(self, exc: BaseException) -> None:
        error = errors.of(exc, self._wire.where)
        error.__cause__ = exc
        self._inbox.put(self._pending.fail, error)
