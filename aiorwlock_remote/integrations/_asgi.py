"""For ASGI applications: the locks of each request, and who hung up while it waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from aiorwlock_remote.errors import LockError
from aiorwlock_remote.integrations._app_locks import AppLocks, no_locks

# ASGI's types, which no framework is imported for.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY = "aiorwlock_remote"
"""Key in the ASGI scope, and attribute of the application's state."""

MAX_READ_AHEAD = 64 * 1024
"""Bytes of a request body that are read ahead while a request waits for its lock."""

MESSAGE_SIZE = 512
"""Bytes counted for each message in addition to its body, which may be one byte."""


class RequestLocks:
    """The locks and messages of one HTTP request or websocket.

    While a request waits for a lock, its messages are read ahead: that a client has
    left is known only from a message. Invariants, each with the test that fails without
    it (test_fastapi_bodies.py):

    * A call of the server's ``receive`` that was made to read ahead is not cancelled
      while the application runs: Starlette's ``BaseHTTPMiddleware`` loses what such a
      call has read already (test_no_receive_is_cancelled).
    * Only one call of the server's ``receive`` is under way at a time, the
      application's own included, and messages and errors reach the application once and
      in their order (test_messages_come_once_and_in_order).
    * At most ``MAX_READ_AHEAD`` bytes and one more message are kept
      (test_what_is_read_ahead_is_bounded).
    * A client that waits for "100 Continue" is not invited to send its body before the
      application reads the body (test_no_body_is_invited_by_waiting).

    ``receive`` and ``send`` are the server's; ``outer`` belongs to the application in
    which this one is mounted, if both have locks of their own.
    """

    def __init__(
        self,
        app_locks: AppLocks,
        receive: Receive,
        send: Send,
        outer: RequestLocks | None,
    ) -> None:
        self.app_locks = app_locks
        self._outer = outer
        self.begun: bool = False
        self._receive = receive
        self._send = send
        self._read_ahead: deque[Message | Exception] = deque()
        self._under_way: anyio.Event | None = None
        self._left = False
        self._failed = False
        self._uninvited = False
        self._error: Exception | None = None
        self._cut_off = False
        self._tasks: TaskGroup | None = None

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        """Call ``app`` for this HTTP request, and raise the error that it raises."""
        self._uninvited = any(name == b"expect" for name, _ in scope["headers"])
        error: Exception | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await app(scope, self.receive, self.send)
            except Exception as exc:  # noqa: BLE001 - raised below
                error = exc
            # The application has ended. A call that reads ahead would wait for the
            # client's next message, and the response with it.
            if self._under_way is not None:
                tasks.cancel_scope.cancel()
        # Outside of the task group, which would wrap the error in a group: handlers of
        # its type would not be called.
        if error is not None:
            try:
                raise self._own(error)
            finally:
                del error  # this frame is in its traceback

    async def receive(self) -> Message:
        """ASGI's ``receive``: return the next message, first those read ahead."""
        # Behind the call that reads ahead: servers do not expect two calls at a time
        # (test_messages_come_once_and_in_order).
        while self._under_way is not None and not self._read_ahead:
            await self._under_way.wait()
        if self._read_ahead:
            message = self._read_ahead.popleft()
            if isinstance(message, Exception):
                raise message
            return message
        # This call of the server's `receive` sends "100 Continue".
        self._uninvited = False
        self._under_way = anyio.Event()
        return await self._read(self._under_way)

    async def gone(self) -> None:
        """Wait until the client has disconnected.

        Wait for ever if that cannot be known: ``receive`` failed, too much of the body
        would have to be kept, or this is a websocket.
        """
        if self._tasks is None:
            await anyio.sleep_forever()
        while not self._left:
            if self._under_way is None:
                if self._uninvited or self._failed or self._kept() >= MAX_READ_AHEAD:
                    await anyio.sleep_forever()
                self._under_way = anyio.Event()
                assert self._tasks is not None
                self._tasks.start_soon(self._keep_next, self._under_way)
            await self._under_way.wait()

    def fail(self, error: Exception) -> None:
        """Record the request's error, so that ``send`` cuts off a begun response."""
        self._error = error
        self._cut_off = self.begun
        if self._outer is not None:
            self._outer.fail(error)

    async def send(self, message: Message) -> None:
        """Pass a message of the application on to the server; ASGI's ``send``.

        If ``fail`` was called after the response had begun, raise that error in place
        of sending the last message, so that the client sees an incomplete body.
        """
        kind = message["type"]
        if kind in ("http.response.start", "websocket.accept"):
            self.begun = True
        # Without its last message the client sees that the body is not complete;
        # BaseHTTPMiddleware would send one in spite of the error
        # (test_a_stream_is_cut_off_through_any_middleware).
        ends = kind == "http.response.body" and not message.get("more_body")
        if ends and self._cut_off and self._error is not None:
            raise self._error
        await self._send(message)

    async def _read(self, under_way: anyio.Event) -> Message:
        try:
            message = await self._receive()
        finally:
            self._under_way = None
            under_way.set()
        self._left |= message["type"] == "http.disconnect"
        return message

    async def _keep_next(self, under_way: anyio.Event) -> None:
        try:
            self._read_ahead.append(await self._read(under_way))
        except Exception as exc:  # noqa: BLE001 - raised where the application reads
            self._failed = True
            self._read_ahead.append(exc)

    def _kept(self) -> int:
        return sum(
            MESSAGE_SIZE + len(message.get("body", b""))
            for message in self._read_ahead
            if not isinstance(message, Exception)
        )

    def _own(self, error: Exception) -> Exception:
        # If an answer has begun when the error reaches the exception handlers, as in a
        # mounted application that has answered 500, Starlette raises a ``RuntimeError``
        # in place of the error
        # (test_a_bug_in_a_mounted_application_is_raised_as_it_is).
        cause = error.__cause__
        if type(error) is RuntimeError and isinstance(cause, LockError):
            return cause if cause is self._error else error
        return error


class LocksMiddleware:
    """The outermost ASGI middleware, which gives each request its ``RequestLocks``.

    ``app``: the application with all other middlewares, in whatever order they were
    added, so that they get the messages that were read ahead.
    """

    def __init__(self, app: ASGIApp, app_locks: AppLocks) -> None:
        self._app = app
        self._app_locks = app_locks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        here = RequestLocks(self._app_locks, receive, send, scope.get(KEY))
        scope[KEY] = here
        if kind == "http":
            await here.serve(self._app, scope)
        else:
            await self._app(scope, receive, here.send)


def request_locks_of(scope: Scope) -> RequestLocks:
    """Return the ``RequestLocks`` of the request or websocket with this ASGI ``scope``.

    Raise ``ConfigurationError`` if ``add_locks`` was not called.
    """
    here = scope.get(KEY)
    if isinstance(here, RequestLocks):
        return here
    raise no_locks()
