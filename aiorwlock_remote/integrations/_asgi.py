"""For ASGI applications: the locks of each request, its answers, its hang-ups."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Literal, get_args

import anyio
from anyio.abc import TaskGroup

from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.integrations._app_locks import AppLocks, no_locks
from aiorwlock_remote.integrations._holding import Holding, RequestHolds
from aiorwlock_remote.integrations._http import PROBLEM, HoldSpec

# ASGI's types, which no framework is imported for.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HoldScope = Literal["function", "request"]
"""Until when a ``hold`` keeps its lock; FastAPI's words for dependencies."""

KEY = "aiorwlock_remote"
"""Key in the ASGI scope, and attribute of the application's state."""

START = "http.response.start"

TRY_AGAIN = 1013
"""Code by which a websocket is closed whose lock was lost."""

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
      (test_the_body_read_ahead_is_bounded).
    * A client that waits for "100 Continue" is not invited to send its body before the
      application reads the body (test_no_body_is_invited_by_waiting).

    The locks of its holds are released when the framework and the middlewares have done
    all that they do before the answer begins; the answer follows, or a 503 in its place
    if a lock was lost. If ``holds.to_the_end``, all of the application runs before the
    locks are released, and its answer is kept back meanwhile, of a streamed one the
    last message. Invariants (test_transactions.py):

    * No client gets a whole answer of success from a request whose lock was lost before
      the release (test_a_loss_before_the_commit_is_no_success).
    * Of two applications, one mounted in the other, the outer one releases
      (test_a_mounted_application_leaves_the_release_to_the_outer_one).

    ``receive`` and ``send`` are the server's; ``outer`` belongs to the application in
    which this one is mounted, if both have locks of their own.
    """

    def __init__(
        self,
        app_locks: AppLocks,
        receive: Receive,
        send: Send,
        outer: RequestLocks | None,
        *,
        hooked: bool = False,
    ) -> None:
        self.app_locks = app_locks
        self._outer = outer
        self.holds: RequestHolds = outer.holds if outer is not None else RequestHolds()
        self._hooked = hooked
        self._kept_back: list[Message] = []
        self._ended = False
        self._closed = False
        self._cors: list[tuple[bytes, bytes]] = []
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
                await self._run(app, scope, self.receive)
            except Exception as exc:  # noqa: BLE001 - raised below
                error = exc
            # The application has ended. A call that reads ahead would wait for the
            # client's next message, and the response with it.
            if self._under_way is not None:
                tasks.cancel_scope.cancel()
        # Outside of the task group, which would wrap the error in a group: handlers of
        # its type would not be called.
        if error is None:
            return
        try:
            if not await self._answered(error):
                raise self._own(error)
        finally:
            del error  # this frame is in its traceback

    async def serve_websocket(self, app: ASGIApp, scope: Scope) -> None:
        """Call ``app`` for this websocket, and raise the error that it raises."""
        try:
            await self._run(app, scope, self._receive)
        except LockError as error:
            if error is not self.holds.error or self._outer is not None:
                raise
            self.app_locks.answer(error)  # for the log
            if not self._closed:
                with suppress(OSError, RuntimeError):  # the client has left
                    await self._send({"type": "websocket.close", "code": TRY_AGAIN})

    def hold(
        self, spec: HoldSpec, values: Mapping[str, object], *, scope: HoldScope
    ) -> Holding:
        """Return what holds the lock of ``spec``, as ``AppLocks.hold`` describes.

        ``scope``: "request" keeps all locks of this request until all of it has ended.
        """
        holding = self.app_locks.hold(spec, values, self.gone, holds=self.holds)
        self.holds.to_the_end |= scope == "request"
        return holding

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
        self._cut_off = self.begun or bool(self._kept_back)
        if self._outer is not None:
            self._outer.fail(error)

    async def send(self, message: Message) -> None:
        """Pass a message of the application on to the server; ASGI's ``send``.

        If ``fail`` was called after the response had begun, raise that error in place
        of sending the last message, so that the client sees an incomplete body.
        """
        kind = message["type"]
        # Without its last message the client sees that the body is not complete;
        # BaseHTTPMiddleware would send one in spite of the error
        # (test_a_stream_is_cut_off_through_any_middleware).
        if _ends(message) and self._cut_off and self._error is not None:
            raise self._error
        self._closed |= kind in ("websocket.close", "websocket.http.response.start")
        if self._keeps_back(message):
            self._kept_back.append(message)
            return
        # A response that has a length, and is streamed all the same.
        kept_back, self._kept_back = self._kept_back, []
        for each in kept_back:
            await self._pass(each)
        await self._pass(message)

    async def begin(self, start: Message) -> None:
        """Release the locks before a response begins, unless they are kept to the end.

        ``start`` is its first message, which no hook and no middleware sees later.
        """
        if self._outer is None and (self._ended or not self.holds.to_the_end):
            self._cors = [each for each in start["headers"] if _is_cors(each[0])]
            if start["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR:
                # The framework raises the error behind such an answer again, and a
                # loss would hide it (test_an_error_of_the_commit_goes_before_a_loss).
                self.holds.give_back()
            else:
                quietly = start["status"] >= HTTPStatus.BAD_REQUEST
                await self.holds.release(quietly=quietly)
        self.begun = True

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        if self._outer is not None:
            await app(scope, receive, self.send)
        else:
            await self.holds.run(self._whole(app, scope, receive))

    async def _whole(self, app: ASGIApp, scope: Scope, receive: Receive) -> None:
        await app(scope, receive, self.send)
        self._ended = True
        # A middleware may have swallowed the error that `send` raised, or that of a
        # dependency which ended behind the response.
        error = self.holds.error or (self._error if self._cut_off else None)
        if error is not None:
            raise error
        # The rest of a response that has begun is sent behind the release. Before its
        # first message `begin` releases the locks.
        if self.begun:
            await self.holds.release()
        for message in self._kept_back:
            await self._pass(message)

    async def _pass(self, message: Message) -> None:
        kind = message["type"]
        if kind == START and not self._hooked:
            await self.begin(message)
        self.begun |= kind == "websocket.accept"
        await self._send(message)

    def _keeps_back(self, message: Message) -> bool:
        if self._ended or self._outer is not None or not self.holds.to_the_end:
            return False
        if message["type"] == START:
            # A streamed response begins at once: its first part may come much later.
            return _is_plain(message)
        return _ends(message) or any(map(_ends, self._kept_back))

    async def _answered(self, error: Exception) -> bool:
        # The response to a loss that was found behind the handler: the application's
        # own handlers take its answer for sent already.
        lost = self.holds.error or self._error
        if not isinstance(lost, LockError) or self.begun or self._outer is not None:
            return False
        if lost is self._error and not _comes_from(error, lost):
            return False
        answer = self.app_locks.answer(lost)
        if answer is None:
            return False
        body = json.dumps(answer.body).encode()
        headers = {**answer.headers, "Content-Type": PROBLEM}
        encoded = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
        encoded += [(b"content-length", str(len(body)).encode()), *self._cors]
        await self._send({"type": START, "status": answer.status, "headers": encoded})
        await self._send({"type": "http.response.body", "body": body})
        return _comes_from(error, lost)

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

    Args:
        app: The application with all other middlewares, in whatever order they were
            added, so that they get the messages that were read ahead.
        app_locks: The locks of the application.
        hooked: Whether ``begin`` of each request is called by a hook, as the framework
            has hooks that commit behind all middlewares.
    """

    def __init__(
        self, app: ASGIApp, app_locks: AppLocks, *, hooked: bool = False
    ) -> None:
        self._app = app
        self._app_locks = app_locks
        self._hooked = hooked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        outer = scope.get(KEY)
        here = RequestLocks(self._app_locks, receive, send, outer, hooked=self._hooked)
        scope[KEY] = here
        if kind == "http":
            await here.serve(self._app, scope)
        else:
            await here.serve_websocket(self._app, scope)


def request_locks_of(scope: Scope) -> RequestLocks:
    """Return the ``RequestLocks`` of the request or websocket with this ASGI ``scope``.

    Raise ``ConfigurationError`` if ``add_locks`` was not called.
    """
    here = scope.get(KEY)
    if isinstance(here, RequestLocks):
        return here
    raise no_locks()


def check_scope(scope: object) -> None:
    """Raise ``ConfigurationError`` unless ``scope`` is a ``HoldScope``."""
    if scope not in get_args(HoldScope):
        raise ConfigurationError(
            what=f"scope must be 'function' or 'request', not {scope!r}"
        )


def _ends(message: Message) -> bool:
    kind = message["type"]
    last = kind == "http.response.body" and not message.get("more_body")
    return last or kind == "http.response.pathsend"


def _is_plain(start: Message) -> bool:
    # Not streamed, as far as can be known: its length is, or it has no body.
    if start["status"] in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return True
    return any(name.lower() == b"content-length" for name, _ in start["headers"])


def _is_cors(header: bytes) -> bool:
    # Without these a browser does not show the answer to the page that asked.
    return header.lower().startswith(b"access-control-") or header.lower() == b"vary"


def _comes_from(error: BaseException, cause: BaseException) -> bool:
    found: BaseException | None = error
    while found is not None and found is not cause:
        found = found.__cause__ or found.__context__
    return found is cause
