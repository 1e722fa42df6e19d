"""Starlette: endpoints that hold a lock while they run.

::

    @hold("invoice:{id:int}")
    async def pay(request):
        held = get_held(request)


    app = Starlette(routes=[Route("/invoices/{id}", pay, methods=["POST"])])
    add_locks(app, connect("redis://localhost/0"))

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar, Unpack, cast

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._asgi import HoldScope, check_scope, request_locks_of
from aiorwlock_remote.integrations._decorated import (
    RequestState,
    grant_of,
    hold_during,
    specs_of,
)
from aiorwlock_remote.integrations._holding import Holding
from aiorwlock_remote.integrations._http import DEFAULT_TIMEOUT, HoldSpec, NamesNoLock
from aiorwlock_remote.integrations._starlette import (
    Route,
    health,
    install,
    locks_of,
    names_no_lock,
    stop_waiting,
    values_of,
    walk_routes,
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.decorators import is_async
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs

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

_METHODS = ("get", "head", "post", "put", "patch", "delete", "options")

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])


def add_locks(app: Starlette, connecting: Connecting, *, required: bool = True) -> None:
    """Open the ``Locks`` of an application when it starts, and close them when it ends.

    They are open around its own lifespan. Every ``LockError`` gets an HTTP response,
    also in applications that are mounted in this one, unless they have handlers of
    their own. When the application starts, each ``hold`` is compared with the path of
    its route.

    Args:
        app: The application.
        connecting: What ``connect(…)`` returned.
        required: False: the application starts although its store is down, answers 503
            to what needs locks, and connects as soon as it can. An error that no retry
            mends, such as a wrong URL, ends the start all the same.

    Raises:
        ConfigurationError: the application has its ``Locks`` already, or has started,
            or ``connecting`` is not ``connect(…)``. When the application starts: a
            ``hold`` does not fit the path of its route, or a mounted application has
            ``Locks`` that are not opened.
        BackendError: as ``connect``, when the application starts, with ``required``.
    """
    install(
        app,
        connecting,
        required=required,
        walk=lambda: walk_routes(app.routes),
        check=_check_route,
    )


def get_locks(of: HTTPConnection | Starlette) -> Locks:
    """Return the ``Locks`` of an application, a request or a websocket.

    Raises:
        ConfigurationError: ``add_locks`` was not called, or the lifespan did not run.
        BackendUnavailable: the store could not be reached since the start.
    """
    return locks_of(of)


def get_held(connection: HTTPConnection) -> Held:
    """Return the grant of the innermost ``hold`` around this endpoint.

    Raises:
        ConfigurationError: the endpoint has no ``hold``.
    """
    # Not ``url``: its query need not be UTF-8 (test_a_query_that_is_no_text).
    where = f"the endpoint of {connection.scope['path']}"
    held: Held = grant_of(connection.scope.get(_HELD), where)
    return held


def get_fence(connection: HTTPConnection) -> int:
    """Return the fence in the request's header ``Lock-Fence``, which the client sets.

    Raises:
        BadFence: the header is missing or no fence. Answered by 400.
    """
    return read_fence(connection.headers.getlist(HEADER))


def hold(
    template: str,
    *,
    mode: LockModeName = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    scope: HoldScope = "function",
    **options: Unpack[OptionArgs],
) -> Callable[[H], H]:
    """Return a decorator: the endpoint holds a lock while it runs.

    For coroutine functions and methods whose last argument is the request or the
    websocket. If the lock is lost, the endpoint is cancelled; if the client disconnects
    while the request waits, waiting ends.

    The lock is released behind the endpoint: when the middlewares have done what they
    do before the response begins, such as a commit. A websocket's is released when the
    middlewares have ended.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the endpoint converts them to that type. A
            path whose text cannot be converted is answered by 404.
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
        ConfigurationError: an argument is not valid; when it decorates: the endpoint is
            no coroutine function.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)
    check_scope(scope)

    async def begin(
        given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Holding, RequestState]:
        connection = _connection((*given, *named.values()))
        request_locks = request_locks_of(connection.scope)
        try:
            values = await values_of(spec, connection, connection.path_params)
            holding = request_locks.hold(spec, values, scope=scope)
        except NamesNoLock as exc:
            raise names_no_lock(connection, exc) from exc
        return holding, connection.scope

    def around(endpoint: H) -> H:
        if not is_async(endpoint):
            raise ConfigurationError(
                what=f"{endpoint!r} is no coroutine function",
                hint="decorate an async def, or a method of an HTTPEndpoint",
            )

        return hold_during(endpoint, spec, begin, _HELD)

    return around


def _connection(given: tuple[Any, ...]) -> HTTPConnection:
    for each in given:
        if isinstance(each, HTTPConnection):
            return cast("HTTPConnection", each)
    raise ConfigurationError(
        what="an endpoint with a hold was called without a request"
    )


def _check_route(at: Route) -> None:
    route, _, kinds = at
    path = str(getattr(route, "path", ""))
    # Starlette does not say how the endpoint reads a text.
    texts = dict.fromkeys(kinds)
    for spec in _holds(getattr(route, "endpoint", None)):
        spec.check(path, texts)


def _holds(endpoint: object) -> Iterator[HoldSpec]:
    if isinstance(endpoint, type):
        for name in _METHODS:
            yield from specs_of(getattr(endpoint, name, None))
    else:
        yield from specs_of(endpoint)
