"""FastAPI: handlers that hold a lock while they run.

::

    app = FastAPI()
    add_locks(app, connect("redis://localhost/0"))


    @app.post("/invoices/{id}")
    async def pay(id: int, held: Annotated[Held, hold("invoice:{id:int}")]): ...

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, Unpack
from weakref import WeakKeyDictionary

import anyio
from fastapi import (
    Depends,
    FastAPI,
    HTTPException,
    Path,
    Request,
    WebSocket,
    WebSocketDisconnect,
    params,
    routing,
    status,
)
from fastapi.dependencies.models import Dependant
from starlette.applications import Starlette
from starlette.convertors import FloatConvertor, PathConvertor, StringConvertor
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Mount, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    PROBLEM,
    HoldSpec,
    PathNamesNoLock,
    answer,
    check_connecting,
    log,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned

__all__ = [
    "FenceDep",
    "LocksDep",
    "add_locks",
    "fence_header",
    "get_fence",
    "get_locks",
    "hold",
]

KEY = "aiorwlock_remote"
"""Key in the ASGI scope, and attribute of the application's state."""

MAX_READ_AHEAD = 64 * 1024
"""Bytes of a request body that are read ahead while a request waits for its lock."""

MESSAGE_SIZE = 512
"""Bytes counted for each message in addition to its body, which may be one byte."""

MOUNTED = "call add_locks for the outermost application: mounted ones share its locks"

CLIENT_CLOSED_REQUEST = 499
"""The status in the server's log for a client that left; no client receives it."""

_hold_specs: WeakKeyDictionary[Callable[..., Any], HoldSpec] = WeakKeyDictionary()
"""The ``HoldSpec`` of each dependency that ``hold`` made."""

_Handlers = Mapping[Any, Callable[..., Any]]

_CONVERTED_BY_HANDLER = (StringConvertor, PathConvertor, FloatConvertor)
"""Convertors that leave text as it is: the handler decides whether 007 equals 7."""


def add_locks(app: FastAPI, connecting: Connecting) -> None:
    """Open the ``Locks`` of an application when it starts, and close them when it ends.

    They are open around its own lifespan. Every ``LockError`` gets an HTTP response,
    also in applications that are mounted in this one, unless they have handlers of
    their own. When the application starts, each ``hold`` is compared with the path of
    its route.

    Raises:
        ConfigurationError: the application has its ``Locks`` already, or has started,
            or ``connecting`` is not ``connect(…)``. When the application starts: a
            ``hold`` does not fit the path of its route, or a mounted application has
            ``Locks`` that are not opened.
        BackendError: as ``connect``, when the application starts.
    """
    check_connecting(connecting)
    if hasattr(app.state, "aiorwlock_remote"):
        raise ConfigurationError(
            what="the application already has locks", hint="call add_locks once"
        )
    if app.middleware_stack is not None:
        raise ConfigurationError(
            what="add_locks was called after the application had started",
            hint="call it before the first request",
        )
    app.state.aiorwlock_remote = app_locks = AppLocks()
    handlers: _Handlers = {LockError: _lock_error, AcquireAbandoned: _client_left}
    _add_handlers(app, handlers)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        # At the start and not in `hold`, which does not know the path of its route.
        _check_routes(app.routes, handlers)
        async with connecting as app_locks.opened, inner(served) as state:
            # After the user's lifespan, which may have opened a mounted application's
            # locks (test_locks_of_a_mounted_application_that_its_parent_opens).
            _check_mounted(app.routes)
            yield state or {}

    app.router.lifespan_context = lifespan
    inside = app.build_middleware_stack
    # Around all middlewares, also those that are added later: add_middleware would put
    # this one inside of them, and they would not get the messages that were read ahead
    # (test_bodies_come_whole_through_every_order).
    app.build_middleware_stack = lambda: LocksMiddleware(inside(), app_locks)  # type: ignore[method-assign]


def get_locks(of: HTTPConnection | FastAPI) -> Locks:
    """Return the ``Locks`` of an application, a request or a websocket.

    Raises:
        ConfigurationError: ``add_locks`` was not called, or the lifespan did not run.
    """
    if isinstance(of, FastAPI):
        return app_locks_of(of).locks
    return request_locks_of(of.scope).app_locks.locks


# Async, as FastAPI calls plain functions in a thread.
async def _locks(connection: HTTPConnection) -> Locks:
    return get_locks(connection)


LocksDep = Annotated[Locks, Depends(_locks)]
"""The type of a handler's parameter that gets the ``Locks``, also with websockets."""


def get_fence(request: Request) -> int:
    """Return the fence in the request's header ``Lock-Fence``, which the client sets.

    Raises:
        BadFence: the header is missing or no fence. Answered by 400.
    """
    return read_fence(request.headers.getlist(HEADER))


async def _fence(request: Request) -> int:
    return get_fence(request)


FenceDep = Annotated[int, Depends(_fence)]
"""The type of a handler's parameter that gets the request's fence; if missing: 400."""


def hold(
    template: str,
    *,
    mode: LockModeName = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    scope: Literal["function", "request"] = "function",
    **options: Unpack[OptionArgs],
) -> params.Depends:
    """Return a dependency, a ``Held``: its lock is held while the handler runs.

    If the lock is lost, the handler is cancelled. If the client disconnects, waiting
    for the lock ends, but a handler that has begun continues.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the handler declares that type.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait; None: for ever.
        reason: Shown to other programs that want the lock.
        scope: ``"function"`` releases the lock before the answer is sent, so that a
            loss is answered by 503. With ``"request"`` a streamed body is sent under
            the lock, and a loss cuts it off.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)

    async def held(
        aiorwlock_request: Request,
        **parts: Any,  # noqa: ANN401 - as the signature below says
    ) -> AsyncIterator[Held]:
        request_locks = request_locks_of(aiorwlock_request.scope)
        locks = request_locks.app_locks.locks
        try:
            acquisition = spec.acquisition(locks, parts)
        except PathNamesNoLock as exc:
            raise HTTPException(404) from exc
        try:
            async with acquisition.unless(request_locks.gone) as grant:
                yield grant
        except Exception as exc:
            # With scope="request" the answer may have begun: it must be cut off.
            request_locks.fail(exc)
            raise

    held.__signature__ = _signature(spec)  # type: ignore[attr-defined]
    _hold_specs[held] = spec
    return params.Depends(held, scope=scope)


def _signature(spec: HoldSpec) -> Signature:
    # By the signature FastAPI converts the path's parameters, and answers 422 if they
    # cannot be converted.
    keyword = Parameter.KEYWORD_ONLY
    request = Parameter("aiorwlock_request", keyword, annotation=Request)
    unseen = Path(include_in_schema=False)
    parts = [
        Parameter(
            parameter.name,
            keyword,
            annotation=Annotated[Any if parameter.bare else parameter.kind, unseen],
        )
        for parameter in spec.template.parameters
    ]
    return Signature([request, *parts])


async def _lock_error(connection: HTTPConnection, error: LockError) -> Response | None:
    request_locks = request_locks_of(connection.scope)
    response = answer(error)
    if response is None:
        request_locks.fail(error)
        raise error
    if isinstance(connection, WebSocket) and request_locks.begun:
        # An accepted websocket has no status: its close code says that the lock was
        # lost (test_a_websocket_whose_lock_is_lost).
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await connection.close(status.WS_1013_TRY_AGAIN_LATER)
        return None
    return JSONResponse(
        response.body,
        status_code=response.status,
        headers=response.headers,
        media_type=PROBLEM,
    )


async def _client_left(request: Request, error: AcquireAbandoned) -> Response:
    del error
    log_event(log, "client_disconnected", logging.DEBUG, path=request.url.path)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _add_handlers(app: Starlette, handlers: _Handlers) -> None:
    # Handlers of the user's stay (test_a_handler_of_the_users_goes_before).
    for error, handler in handlers.items():
        app.exception_handlers.setdefault(error, handler)


def _check_routes(routes: Sequence[BaseRoute], handlers: _Handlers) -> None:
    # Mounted applications get the handlers: their errors do not reach the outer ones.
    for route, mounted, kinds in _walked(routes):
        if isinstance(mounted, Starlette):
            _add_handlers(mounted, handlers)
        dependant = getattr(route, "dependant", None)
        if mounted is None and isinstance(dependant, Dependant):
            _check_route(route, dependant, kinds)


def _check_mounted(routes: Sequence[BaseRoute]) -> None:
    # The lifespan of a mounted application runs only if the outer lifespan calls it
    # (test_locks_of_a_mounted_application_that_nothing_opens).
    for route, mounted, _ in _walked(routes):
        app_locks = getattr(getattr(mounted, "state", None), KEY, None)
        if isinstance(app_locks, AppLocks) and app_locks.opened is None:
            path = getattr(route, "path", "") or getattr(route, "host", "")
            raise ConfigurationError(
                what=f"the application mounted on {quoted(path)} has locks of its own, "
                "which are not opened",
                hint=MOUNTED,
            )


def _walked(
    routes: Sequence[BaseRoute], outside: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[Any, ASGIApp | None, dict[str, Any]]]:
    # All routes, those of mounted applications too: the route, the application that is
    # mounted there, and the parameters of the whole path with their types.
    for route in _flat_routes(routes):
        kinds = {**outside, **_path_parameters(str(getattr(route, "path", "")))}
        mounted = _mounted(route)
        yield route, mounted, kinds
        yield from _walked(getattr(mounted, "routes", ()), kinds)


def _mounted(route: Any) -> ASGIApp | None:  # noqa: ANN401 - a route of any kind
    original = getattr(route, "original_route", route)
    if not isinstance(original, Mount | Host):
        return None
    app: ASGIApp = getattr(original, "_base_app", original.app)
    return app


def _check_route(route: Any, dependant: Dependant, kinds: dict[str, Any]) -> None:  # noqa: ANN401 - a route of any kind
    tree = list(_dependants(dependant))
    specs: list[HoldSpec] = []
    for node in tree:
        if node.call is not None and node.call in _hold_specs:
            specs.append(_hold_specs[node.call])
            continue
        # The type by which the handler, or another dependency, reads the parameter
        # (test_text_that_another_dependency_reads_as_something_else).
        for field in node.path_params:
            if kinds.get(field.alias, ...) is str:
                kinds[field.alias] = field.field_info.annotation
    original = getattr(route, "original_route", route)
    for each in specs:
        if isinstance(original, routing.APIWebSocketRoute):
            raise ConfigurationError(
                what=f"{quoted(each)} is for HTTP, not for websockets"
            )
        each.check(route.path, kinds)


def _path_parameters(path: str) -> dict[str, Any]:
    # The type of a parameter is None if the path itself converts the text.
    _, _, convertors = compile_path(path)
    return {
        name: str if isinstance(convertor, _CONVERTED_BY_HANDLER) else None
        for name, convertor in convertors.items()
    }


def _dependants(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _dependants(inner)


def _flat_routes(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    # Newer FastAPIs keep included routers as they are, older ones copy their routes.
    contexts = getattr(routing, "iter_route_contexts", None)
    yield from routes if contexts is None else contexts(routes)


class AppLocks:
    """Keeps the ``Locks`` of one application, open while the application runs."""

    opened: Locks | None = None

    @property
    def locks(self) -> Locks:
        """The open ``Locks``; ``ConfigurationError`` if the lifespan did not run."""
        if self.opened is None:
            raise ConfigurationError(
                what="the application has no locks yet",
                hint=f"its lifespan did not run; {MOUNTED}",
            )
        return self.opened


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

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        """Call ``app`` for this HTTP request, and raise the error that it raises."""
        self._uninvited = any(name == b"expect" for name, _ in scope["headers"])
        error: Exception | None = None
        async with anyio.create_task_group() as self._tasks:
            try:
                await app(scope, self.receive, self.send)
            except Exception as exc:  # noqa: BLE001 - raised below
                error = exc
            # The application has ended. A call that reads ahead would wait for the
            # client's next message, and the response with it.
            if self._under_way is not None:
                self._tasks.cancel_scope.cancel()
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

        Wait for ever if that cannot be known: ``receive`` failed, or too much of the
        body would have to be kept.
        """
        while not self._left:
            if self._under_way is None:
                if self._uninvited or self._failed or self._kept() >= MAX_READ_AHEAD:
                    await anyio.sleep_forever()
                self._under_way = anyio.Event()
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
    return here if isinstance(here, RequestLocks) else _raise_no_locks()


def app_locks_of(app: Starlette) -> AppLocks:
    """Return what ``add_locks`` made for ``app``; ``ConfigurationError`` if nothing."""
    here = getattr(app.state, KEY, None)
    return here if isinstance(here, AppLocks) else _raise_no_locks()


def _raise_no_locks() -> NoReturn:
    raise ConfigurationError(
        what="the application has no locks", hint="add_locks(app, connect(…))"
    )
