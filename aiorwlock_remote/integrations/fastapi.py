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

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import (
    Parameter,
    Signature,
    isasyncgenfunction,
    isgeneratorfunction,
    unwrap,
)
from typing import Annotated, Any, NoReturn, Unpack, final
from weakref import WeakKeyDictionary

from fastapi import Depends, FastAPI, Path, Request, WebSocket, params, routing
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._app_locks import AppLocks
from aiorwlock_remote.integrations._asgi import HoldScope, check_scope, request_locks_of
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    PROBLEM,
    HoldSpec,
    NamesNoLock,
    log,
)
from aiorwlock_remote.integrations._starlette import (
    Route,
    app_locks_of,
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
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.logs import log_event

__all__ = [
    "FenceDep",
    "LocksDep",
    "add_locks",
    "fence_header",
    "get_fence",
    "get_locks",
    "health",
    "hold",
    "stop_waiting",
]

_hold_specs: WeakKeyDictionary[Callable[..., Any], HoldSpec] = WeakKeyDictionary()
"""The ``HoldSpec`` of each dependency that ``hold`` made."""

_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which to ask again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


def _described(what: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
        },
    }
    return {
        "description": what,
        "headers": _RETRY_AFTER,
        "content": {PROBLEM: {"schema": schema}},
    }


_RESPONSES = {
    "423": _described("Locked: another request works on this."),
    "503": _described("The lock was lost, or its store cannot be reached."),
}
"""What OpenAPI says of a handler with a hold, beside its own responses."""


def add_locks(app: FastAPI, connecting: Connecting, *, required: bool = True) -> None:
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
        walk=lambda: walk_routes(app.routes, _flat_routes),
        check=lambda route: _check_route(app_locks_of(app), route),
    )
    _document(app)


def get_locks(of: HTTPConnection | FastAPI) -> Locks:
    """Return the ``Locks`` of an application, a request or a websocket.

    Raises:
        ConfigurationError: ``add_locks`` was not called, or the lifespan did not run.
    """
    return locks_of(of)


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
    scope: HoldScope = "function",
    **options: Unpack[OptionArgs],
) -> params.Depends:
    """Return a dependency, a ``Held``: its lock is held while the handler runs.

    If the lock is lost, the handler is cancelled. If the client disconnects, waiting
    for the lock ends, but a handler that has begun continues. A websocket waits for its
    lock before the handshake, and is not known to have left meanwhile.

    The lock is released behind the other dependencies of the route, in whatever order
    they are declared, and behind what middlewares do before the response begins: one of
    them may commit. If a dependency with ``yield`` ends behind the response, as it does
    unless it has ``scope="function"``, so does the hold, as with ``scope="request"``.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the handler declares that type.
            ``{query.id:int}`` is a part of the query, ``{body.id:int}`` of a JSON body;
            a request without such a part is answered by 422.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait; None: for ever.
        reason: Shown to other programs that want the lock.
        scope: ``"function"`` releases the lock before the response is sent, also a
            streamed one. ``"request"`` keeps it until all of the request has ended:
            a streamed body, background tasks, what middlewares do behind them. Either
            way a loss is answered by 503, but a stream that has begun is cut off.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)
    check_scope(scope)
    # As FastAPI converts them for the handler, with the same 422 if that fails.
    adapters: dict[str, TypeAdapter[Any]] = {
        parameter.name: TypeAdapter(parameter.kind)
        for parameter in spec.template.parameters
        if parameter.source == "path" and not parameter.bare
    }

    async def held(
        aiorwlock_request: HTTPConnection,
        **parts: Any,  # noqa: ANN401 - as the signature below says
    ) -> AsyncIterator[Held]:
        request_locks = request_locks_of(aiorwlock_request.scope)
        path = _converted(adapters, parts, aiorwlock_request)
        try:
            values = await values_of(spec, aiorwlock_request, path)
            late = _is_late(request_locks.app_locks, aiorwlock_request)
            until = "request" if late else scope
            holding = request_locks.hold(spec, values, scope=until)
        except NamesNoLock as exc:
            raise names_no_lock(aiorwlock_request, exc) from exc
        try:
            async with holding as grant:
                yield grant
        except Exception as exc:
            # With scope="request" the answer may have begun: it must be cut off.
            request_locks.fail(exc)
            raise

    held.__signature__ = _signature(spec)  # type: ignore[attr-defined]
    _hold_specs[held] = spec
    return HoldDependency(held, scope=scope)


@final
class HoldDependency(params.Depends):
    """What ``hold`` returns; a ``Depends``."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to decorate: FastAPI's ``hold`` is a dependency."""
        raise ConfigurationError(
            what="FastAPI's hold(…) is a dependency, not a decorator",
            hint="held: Annotated[Held, hold(…)] as a parameter of the handler, or "
            "@app.post(…, dependencies=[hold(…)])",
        )


def _signature(spec: HoldSpec) -> Signature:
    # The parameters come as text: if FastAPI converted them here, too, it would report
    # each that it cannot convert twice (test_a_bad_path_parameter_is_reported_once).
    keyword = Parameter.KEYWORD_ONLY
    request = Parameter("aiorwlock_request", keyword, annotation=HTTPConnection)
    text = Annotated[Any, Path(include_in_schema=False)]
    parts = [
        Parameter(parameter.name, keyword, annotation=text)
        for parameter in spec.template.parameters
        if parameter.source == "path"
    ]
    return Signature([request, *parts])


def _converted(
    adapters: Mapping[str, TypeAdapter[Any]],
    values: Mapping[str, Any],
    connection: HTTPConnection,
) -> dict[str, Any]:
    converted, details = dict(values), list[Any]()
    for name, adapter in adapters.items():
        try:
            converted[name] = adapter.validate_python(values[name])
        except ValidationError as exc:
            found = exc.errors(include_url=False)
            details += [{**each, "loc": ("path", name)} for each in found]
    if details and isinstance(connection, WebSocket):
        raise WebSocketRequestValidationError(details)
    if details:
        raise RequestValidationError(details)
    return converted


def _document(app: FastAPI) -> None:
    # Around the application's own function, which the user may have replaced.
    if getattr(app.openapi, "func", None) is not _openapi:
        app.openapi = partial(_openapi, app, app.openapi)  # type: ignore[method-assign]


def _openapi(app: FastAPI, inner: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    schema = inner()
    paths = schema.get("paths", {})
    for route in _flat_routes(app.routes):
        dependant = _dependant_of(route)
        if dependant is None or not _specs(dependant):
            continue
        operations = paths.get(getattr(route, "path_format", ""), {})
        for method in getattr(route, "methods", None) or ():
            if method.lower() in operations:
                responses = operations[method.lower()].setdefault("responses", {})
                for code, description in _RESPONSES.items():
                    responses.setdefault(code, description)
    return schema


def _specs(dependant: Dependant) -> list[HoldSpec]:
    calls = [node.call for node in _dependants(dependant) if node.call is not None]
    return [_hold_specs[call] for call in calls if call in _hold_specs]


def _check_route(app_locks: AppLocks, at: Route) -> None:
    route, mounted, kinds = at
    if isinstance(mounted, FastAPI):
        _document(mounted)
    dependant = _dependant_of(route)
    if dependant is None and _is_api_route(route):
        # Its dependencies may end behind the response.
        app_locks.late_endpoints.add(_endpoint_of(route))
    if mounted is not None or dependant is None:
        return
    for node in _dependants(dependant):
        if node.call is not None and node.call in _hold_specs:
            continue
        # The type by which the handler, or another dependency, reads the parameter
        # (test_text_that_another_dependency_reads_as_something_else).
        for field in node.path_params:
            if kinds.get(field.alias, ...) is str:
                kinds[field.alias] = field.field_info.annotation
    for each in _specs(dependant):
        each.check(route.path, kinds)
    _check_order(app_locks, route, dependant)


def _check_order(app_locks: AppLocks, route: Any, dependant: Dependant) -> None:  # noqa: ANN401 - as above
    # A hold must outlive what may commit.
    calls = [(node.call, node.scope) for node in _dependants(dependant) if node.call]
    holds = {call: scope for call, scope in calls if call in _hold_specs}
    late = [
        call
        for call, scope in calls
        if call not in holds and scope != "function" and _is_generator(call)
    ]
    if not holds or not late:
        return
    app_locks.late_endpoints.add(_endpoint_of(route))
    if "function" not in holds.values():
        return
    names = {getattr(call, "__qualname__", repr(call)) for call in late}
    because = ", ".join(sorted(names))
    log_event(log, "held_to_the_end", path=str(route.path), because=because)


def _is_late(app_locks: AppLocks, request: HTTPConnection) -> bool:
    # Overrides come after the start, from tests.
    overrides = getattr(request.scope.get("app"), "dependency_overrides", {})
    if any(map(_is_generator, overrides.values())):
        return True
    return request.scope.get("endpoint") in app_locks.late_endpoints


def _is_generator(call: Any) -> bool:  # noqa: ANN401 - callables of any kind
    while isinstance(call, partial):
        call = call.func
    made: object = call
    # B004: for a callable object, its method.
    candidates = (call, unwrap(call), getattr(type(made), "__call__", None))  # noqa: B004
    return any(isgeneratorfunction(c) or isasyncgenfunction(c) for c in candidates)


def _dependant_of(route: Any) -> Dependant | None:  # noqa: ANN401 - a route of any kind
    found: object = getattr(route, "dependant", None)
    if isinstance(found, Dependant):
        return found
    if _is_api_route(route):
        instead = (
            "holds are not compared with their paths, nor shown in the schema, and end "
            "behind the response"
        )
        report_differing("fastapi", "APIRoute.dependant", instead)
    return None


def _endpoint_of(route: Any) -> object:  # noqa: ANN401 - a route of any kind
    return getattr(route, "original_route", route).endpoint


def _is_api_route(route: Any) -> bool:  # noqa: ANN401 - a route of any kind
    original = getattr(route, "original_route", route)
    return isinstance(original, routing.APIRoute | routing.APIWebSocketRoute)


def _dependants(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _dependants(inner)


def _flat_routes(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    # Newer FastAPIs keep included routers as they are, older ones copy their routes.
    contexts = getattr(routing, "iter_route_contexts", None)
    yield from routes if contexts is None else contexts(routes)
