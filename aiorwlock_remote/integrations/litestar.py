"""Litestar: handlers that hold a lock while they run.

::

    @post("/invoices/{id:int}")
    @hold("invoice:{id:int}")
    async def pay(request: Request, id: FromPath[int]) -> None:
        held = get_held(request)


    app = Litestar([pay], plugins=[add_locks(connect("redis://localhost/0"))])

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from inspect import signature
from typing import Annotated, Any, TypeVar, Unpack, cast, final, get_args, get_origin

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.exceptions import HTTPException
from litestar.plugins import InitPluginProtocol
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._app_locks import (
    AppLocks,
    has_locks,
    no_locks,
    on_stop_signal,
)
from aiorwlock_remote.integrations._asgi import (
    KEY,
    START,
    ASGIApp,
    HoldScope,
    LocksMiddleware,
    RequestLocks,
    check_scope,
    request_locks_of,
)
from aiorwlock_remote.integrations._decorated import (
    RequestState,
    grant_of,
    hold_during,
    specs_of,
)
from aiorwlock_remote.integrations._holding import Holding
from aiorwlock_remote.integrations._http import (
    CLIENT_CLOSED_REQUEST,
    DEFAULT_TIMEOUT,
    HoldSpec,
    JsonAnswer,
    NamesNoLock,
    log,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.decorators import is_async
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned

__all__ = [
    "add_locks",
    "fence_header",
    "get_fence",
    "get_held",
    "get_locks",
    "health",
    "hold",
    "stop_waiting",
]

_HELD = "aiorwlock_remote.held"
"""Key in the ASGI scope: the grant of the innermost ``hold``."""

AnyRequest = Request[Any, Any, Any]

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])


def add_locks(connecting: Connecting, *, required: bool = True) -> InitPluginProtocol:
    """Return a plugin that opens the ``Locks`` of an application while it runs.

    They are open around all other lifespans. Every ``LockError`` gets an HTTP response,
    unless the application has a handler of its own. When the application starts, each
    ``hold`` is compared with the path of its route.

    Args:
        connecting: What ``connect(…)`` returned.
        required: False: the application starts although its store is down, answers 503
            to what needs locks, and connects as soon as it can. An error that no retry
            mends, such as a wrong URL, ends the start all the same.

    Raises:
        ConfigurationError: ``connecting`` is not ``connect(…)``; when the application
            starts: a ``hold`` does not fit the path of its route.
        BackendError: as ``connect``, when the application starts, with ``required``.
    """
    return _LocksPlugin(AppLocks(connecting, required=required))


def get_locks(of: AnyRequest | Litestar) -> Locks:
    """Return the ``Locks`` of an application, or of a request's application.

    Raises:
        ConfigurationError: the application has no ``add_locks`` among its plugins, or
            has not started.
        BackendUnavailable: the store could not be reached since the start.
    """
    return _app_locks(of if isinstance(of, Litestar) else of.app).locks


def get_held(request: AnyRequest) -> Held:
    """Return the grant of the innermost ``hold`` around this handler.

    Raises:
        ConfigurationError: the handler has no ``hold``.
    """
    found = cast("RequestState", request.scope).get(_HELD)
    held: Held = grant_of(found, f"the handler of {request.scope['path']}")
    return held


def get_fence(request: AnyRequest) -> int:
    """Return the fence in the request's header ``Lock-Fence``, which the client sets.

    Raises:
        BadFence: the header is missing or no fence. Answered by 400.
    """
    return read_fence(request.headers.getall(HEADER, []))


def hold(
    template: str,
    *,
    mode: LockModeName = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    scope: HoldScope = "function",
    **options: Unpack[OptionArgs],
) -> Callable[[H], H]:
    """Return a decorator: the handler holds a lock while it runs.

    For coroutine functions and methods of a ``Controller`` that have a parameter
    ``request``; put it below the route's decorator. If the lock is lost, the handler is
    cancelled; if the client disconnects while the request waits, waiting ends.

    The lock is released behind the handler: when its dependencies, the middlewares and
    the hooks have done what they do before the response begins, such as a commit.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the path converts them to that type. A path
            whose text cannot be converted is answered by 404.
            ``{query.id:int}`` is a part of the query, ``{body.id:int}`` of a JSON body;
            a request without such a part is answered by 422.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait; None: for ever.
        reason: Shown to other programs that want the lock.
        scope: ``"function"`` releases the lock before the response is sent, also a
            streamed one. ``"request"`` keeps it until all of the request has ended:
            the streamed body, background tasks, what middlewares do behind them.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid; when it decorates: the handler is
            no coroutine function, or has no parameter ``request``.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)
    check_scope(scope)

    async def begin(
        _: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Holding, RequestState]:
        request: AnyRequest = named["request"]
        state = cast("RequestState", request.scope)
        request_locks = request_locks_of(state)
        try:
            body = await request.body() if spec.uses("body") else None
            values = spec.values(request.path_params, partial(_query, request), body)
            return request_locks.hold(spec, values, scope=scope), state
        except NamesNoLock as exc:
            raise HTTPException(status_code=exc.status) from exc

    def around(handler: H) -> H:
        if not is_async(handler) or "request" not in signature(handler).parameters:
            raise ConfigurationError(
                what=f"{handler!r} is no coroutine function with a parameter request",
                hint="write async def pay(request: Request, …) below the route's "
                "decorator",
            )

        return hold_during(handler, spec, begin, _HELD)

    return around


def _query(request: AnyRequest, name: str) -> list[str]:
    return request.query_params.getall(name, [])


async def health(request: AnyRequest) -> Response[Any]:
    """Handler for a readiness probe: 200 if the store answers in 2 s, else 503.

    ``get("/ready")(health)`` is a route. Do not let a *liveness* probe call it: a
    restart mends no store.
    """
    return _response(await _app_locks(request.app).health())


def stop_waiting(app: Litestar) -> None:
    """Let every request that waits for a ``hold`` be answered by 503, now and later.

    SIGTERM and SIGINT do that; call this function in the event loop of the application
    if another event makes your server stop. Requests that hold a lock go on. The
    next start of the application ends it.

    Raises:
        ConfigurationError: the application has no ``add_locks`` among its plugins.
    """
    _app_locks(app).stop_waiting()


@final
class _LocksPlugin(InitPluginProtocol):
    def __init__(self, app_locks: AppLocks) -> None:
        self._app_locks = app_locks

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_locks = self._app_locks

        @asynccontextmanager
        async def lifespan(app: Litestar) -> AsyncIterator[None]:
            for path, texts, spec in _holds(app):
                spec.check(path, texts)
            with on_stop_signal(app_locks.stop_waiting):
                async with app_locks.running():
                    # Here, so that it is behind the hooks of all plugins: one of them
                    # may commit (test_a_loss_before_the_commit_is_no_success).
                    if _begin not in app.before_send:
                        app.before_send.append(_begin)
                    yield

        def middleware(app: ASGIApp) -> ASGIApp:
            return LocksMiddleware(app, app_locks, hooked=True)

        if KEY in app_config.state:
            raise has_locks()
        app_config.state[KEY] = app_locks
        config = cast("Any", app_config)  # whose lists are of partly unknown types
        config.lifespan.insert(0, lifespan)
        config.middleware.insert(0, middleware)
        # Handlers of the user's stay.
        for error, handler in _HANDLERS.items():
            config.exception_handlers.setdefault(error, handler)
        return app_config


async def _begin(message: Message, scope: Scope) -> None:
    here = cast("dict[str, Any]", scope).get(KEY)
    if message["type"] == START and isinstance(here, RequestLocks):
        await here.begin(cast("dict[str, Any]", message))


def _app_locks(app: Litestar) -> AppLocks:
    found = app.state.get(KEY)
    if isinstance(found, AppLocks):
        return found
    raise no_locks()


def _lock_error(request: AnyRequest, error: LockError) -> Response[Any]:
    response = _app_locks(request.app).answer(error)
    if response is None:
        raise error
    return _response(response)


def _client_left(request: AnyRequest, error: AcquireAbandoned) -> Response[Any]:
    del error
    log_event(log, "client_disconnected", logging.DEBUG, path=request.url.path)
    return Response(None, status_code=CLIENT_CLOSED_REQUEST)


_HANDLERS: dict[type[Exception], Callable[..., Response[Any]]] = {
    LockError: _lock_error,
    AcquireAbandoned: _client_left,
}


def _response(answer: JsonAnswer) -> Response[Any]:
    return Response(
        json.dumps(answer.body).encode(),
        status_code=answer.status,
        headers=answer.headers,
        media_type=answer.content_type,
    )


def _holds(app: Litestar) -> Iterator[tuple[str, dict[str, Any], HoldSpec]]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            read = handler.parsed_fn_signature.parameters
            # The path converts all types but text, which the handler may convert.
            kinds = {
                name: _kind(read[name].annotation if name in read else str)
                if parameter.type is str
                else None
                for name, parameter in route.path_parameters.items()
            }
            for spec in specs_of(handler.fn):
                yield route.path, kinds, spec


def _kind(annotation: Any) -> object:  # noqa: ANN401 - of a parameter
    # FromPath[int] is Annotated[int, …].
    return (
        get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    )
