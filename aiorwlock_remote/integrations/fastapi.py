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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Unpack
from weakref import WeakKeyDictionary

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
from starlette.types import ASGIApp

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._asgi import (
    KEY,
    MOUNTED,
    AppLocks,
    LocksMiddleware,
    app_locks_of,
    request_locks_of,
)
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    PROBLEM,
    HoldSpec,
    Mode,
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
    mode: Mode = "write",
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


def _check_routes(
    routes: Sequence[BaseRoute],
    handlers: _Handlers,
    outside: Mapping[str, Any] | None = None,
) -> None:
    # Mounted applications get the handlers: their errors do not reach the outer ones.
    # ``outside``: the parameters of the path on which the application is mounted.
    for route in _flat_routes(routes):
        kinds = {**(outside or {}), **_path_parameters(str(getattr(route, "path", "")))}
        if (mounted := _mounted(route)) is not None:
            if isinstance(mounted, Starlette):
                _add_handlers(mounted, handlers)
            _check_routes(getattr(mounted, "routes", ()), handlers, kinds)
            continue
        dependant = getattr(route, "dependant", None)
        if isinstance(dependant, Dependant):
            _check_route(route, dependant, kinds)


def _check_mounted(routes: Sequence[BaseRoute]) -> None:
    # The lifespan of a mounted application runs only if the outer lifespan calls it
    # (test_locks_of_a_mounted_application_that_nothing_opens).
    for route in _flat_routes(routes):
        if (mounted := _mounted(route)) is None:
            continue
        app_locks = getattr(getattr(mounted, "state", None), KEY, None)
        if isinstance(app_locks, AppLocks) and app_locks.opened is None:
            path = getattr(route, "path", "") or getattr(route, "host", "")
            raise ConfigurationError(
                what=f"the application mounted on {quoted(path)} has locks of its own, "
                "which are not opened",
                hint=MOUNTED,
            )
        _check_mounted(getattr(mounted, "routes", ()))


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
