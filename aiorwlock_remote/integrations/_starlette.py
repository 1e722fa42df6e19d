"""What the integrations of Starlette and FastAPI share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import FloatConvertor, PathConvertor, StringConvertor
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Mount, compile_path
from starlette.status import WS_1008_POLICY_VIOLATION, WS_1013_TRY_AGAIN_LATER
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.integrations._app_locks import (
    AppLocks,
    has_locks,
    no_locks,
    on_stop_signal,
)
from aiorwlock_remote.integrations._asgi import KEY, LocksMiddleware, request_locks_of
from aiorwlock_remote.integrations._http import (
    CLIENT_CLOSED_REQUEST,
    HoldSpec,
    JsonAnswer,
    NamesNoLock,
    log,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned

MOUNTED = "call add_locks for the outermost application: mounted ones share its locks"

Route = tuple[Any, ASGIApp | None, dict[str, Any]]
"""A route, the application that is mounted there, and the parameters of the whole path
with their types; the type is None if the path itself converts the text."""

_CONVERTED_BY_HANDLER = (StringConvertor, PathConvertor, FloatConvertor)
"""Convertors that leave text as it is: the handler decides whether 007 equals 7."""


def install(
    app: Starlette,
    connecting: Connecting,
    *,
    required: bool,
    walk: Callable[[], Iterator[Route]],
    check: Callable[[Route], None],
) -> None:
    """Do what ``add_locks`` of Starlette and of FastAPI describe.

    ``walk`` yields all routes, and ``check`` compares the holds of one with its path.
    """
    app_locks = AppLocks(
        connecting,
        required=required,
        not_started=f"its lifespan did not run; {MOUNTED}",
    )
    if hasattr(app.state, KEY):
        raise has_locks()
    if app.middleware_stack is not None:
        raise ConfigurationError(
            what="add_locks was called after the application had started",
            hint="call it before the first request",
        )
    setattr(app.state, KEY, app_locks)
    _add_handlers(app)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: Any) -> AsyncIterator[Mapping[str, Any]]:  # noqa: ANN401 - of either class
        # At the start and not in `hold`, which does not know the path of its route.
        for route in walk():
            # Mounted applications get the handlers: their errors do not reach the outer
            # ones.
            if isinstance(route[1], Starlette):
                _add_handlers(route[1])
            check(route)
        with on_stop_signal(app_locks.stop_waiting):
            async with app_locks.running(), inner(served) as state:
                # After the user's lifespan, which may have opened a mounted
                # application's locks
                # (test_locks_of_a_mounted_application_that_its_parent_opens).
                for route in walk():
                    _check_mounted(route)
                yield state or {}

    app.router.lifespan_context = lifespan
    inside = app.build_middleware_stack
    # Around all middlewares, also those that are added later: add_middleware would put
    # this one inside of them, and they would not get the messages that were read ahead
    # (test_bodies_come_whole_through_every_order).
    app.build_middleware_stack = lambda: LocksMiddleware(inside(), app_locks)  # type: ignore[method-assign]


def app_locks_of(app: Starlette) -> AppLocks:
    """Return what ``add_locks`` made for ``app``; ``ConfigurationError`` if nothing."""
    here = getattr(app.state, KEY, None)
    if isinstance(here, AppLocks):
        return here
    raise no_locks()


def locks_of(of: HTTPConnection | Starlette) -> Locks:
    """Return the ``Locks`` of an application, a request or a websocket."""
    if isinstance(of, Starlette):
        return app_locks_of(of).locks
    return request_locks_of(of.scope).app_locks.locks


def stop_waiting(app: Starlette) -> None:
    """Let every request that waits for a ``hold`` be answered by 503, now and later.

    SIGTERM and SIGINT do that; call this function in the event loop of the application
    if another event makes your server stop. Requests that hold a lock go on. The
    next start of the application ends it.

    Raises:
        ConfigurationError: ``add_locks`` was not called.
    """
    app_locks_of(app).stop_waiting()


async def health(request: Request) -> Response:
    """Endpoint for a readiness probe: 200 if the store answers in 2 s, else 503.

    Do not let a *liveness* probe call it: a restart mends no store.
    """
    return json_response(await request_locks_of(request.scope).app_locks.health())


async def values_of(
    spec: HoldSpec, connection: HTTPConnection, path: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the values of the parameters of a hold, given those of the path.

    Raises:
        NamesNoLock: the query or the body lacks a parameter, or has two of one name.
    """
    body: bytes | None = None
    if spec.uses("body") and isinstance(connection, Request):
        body = await connection.body()

    def query(name: str) -> list[str]:
        return connection.query_params.getlist(name)

    return spec.values(path, query, body)


def names_no_lock(connection: HTTPConnection, error: NamesNoLock) -> Exception:
    """Return the error by which either framework answers that."""
    if isinstance(connection, WebSocket):
        return WebSocketException(WS_1008_POLICY_VIOLATION)
    return HTTPException(error.status)


def json_response(answer: JsonAnswer) -> Response:
    """Return the response of either framework."""
    return JSONResponse(
        answer.body, answer.status, answer.headers, media_type=answer.content_type
    )


def walk_routes(
    routes: Sequence[BaseRoute],
    flat: Callable[[Sequence[BaseRoute]], Iterator[Any]] = iter,
    outside: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Route]:
    """Yield all routes, those of mounted applications too.

    ``flat`` returns the routes of included routers, too; ``outside`` has the path's
    parameters in which the application is mounted.
    """
    for route in flat(routes):
        kinds = {**outside, **_path_parameters(str(getattr(route, "path", "")))}
        mounted = _mounted(route)
        yield route, mounted, kinds
        yield from walk_routes(getattr(mounted, "routes", ()), flat, kinds)


async def _lock_error(connection: HTTPConnection, error: LockError) -> Response | None:
    request_locks = request_locks_of(connection.scope)
    response = request_locks.app_locks.answer(error)
    if response is None:
        request_locks.fail(error)
        raise error
    # An accepted websocket has no status, and neither has one that is refused by an old
    # server: its close code says that the lock was lost or busy
    # (test_a_websocket_whose_lock_is_lost).
    answers = "websocket.http.response" in connection.scope.get("extensions", ())
    if isinstance(connection, WebSocket) and (request_locks.begun or not answers):
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await connection.close(WS_1013_TRY_AGAIN_LATER)
        return None
    return json_response(response)


async def _client_left(request: Request, error: AcquireAbandoned) -> Response:
    del error
    log_event(log, "client_disconnected", logging.DEBUG, path=request.url.path)
    return Response(status_code=CLIENT_CLOSED_REQUEST)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    LockError: _lock_error,
    AcquireAbandoned: _client_left,
}


def _add_handlers(app: Starlette) -> None:
    # Handlers of the user's stay (test_a_handler_of_the_users_goes_before).
    for error, handler in _HANDLERS.items():
        app.exception_handlers.setdefault(error, handler)


def _check_mounted(route: Route) -> None:
    # The lifespan of a mounted application runs only if the outer lifespan calls it
    # (test_locks_of_a_mounted_application_that_nothing_opens).
    at, mounted, _ = route
    app_locks = getattr(getattr(mounted, "state", None), KEY, None)
    if isinstance(app_locks, AppLocks) and not app_locks.opened:
        path = getattr(at, "path", "") or getattr(at, "host", "")
        raise ConfigurationError(
            what=f"the application mounted on {quoted(path)} has locks of its own, "
            "which are not opened",
            hint=MOUNTED,
        )


def _mounted(route: Any) -> ASGIApp | None:  # noqa: ANN401 - a route of any kind
    original = getattr(route, "original_route", route)
    if not isinstance(original, Mount | Host):
        return None
    if isinstance(original, Mount):
        return _base_app_of(original)
    return original.app


def _base_app_of(mount: Mount) -> ASGIApp:
    # The application itself: ``app`` is what its middlewares have made of it.
    found: ASGIApp | None = getattr(mount, "_base_app", None)
    if found is not None:
        return found
    report_differing("starlette", "Mount._base_app", "its app, under its middlewares")
    inner: Any = mount.app
    while not hasattr(inner, "routes") and hasattr(inner, "app"):
        inner = inner.app
    app: ASGIApp = inner
    return app


def _path_parameters(path: str) -> dict[str, Any]:
    _, _, convertors = compile_path(path)
    return {
        name: str if isinstance(convertor, _CONVERTED_BY_HANDLER) else None
        for name, convertor in convertors.items()
    }
