"""FastAPI: handlers that hold a lock while they run.

::

    app = FastAPI()
    add_locks(app, connect("redis://localhost/0"))


    @app.post("/invoices/{id}")
    async def pay(id: int, held: Annotated[Held, hold("invoice:{id:int}")]): ...

Not obtained in time is answered by 423 and ``Retry-After``, a lock lost or a store that
is down by 503, a fence that is too old by 412, each as ``application/problem+json``.

Every ``hold`` of a FastAPI application, and whether it fits where it stands.
"""

from __future__ import annotations

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
)
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned

_hold_specs: WeakKeyDictionary[Callable[..., Any], HoldSpec] = WeakKeyDictionary()
"""The dependencies that ``hold`` made."""

_Handlers = Mapping[Any, Callable[..., Any]]

_CONVERTED_BY_HANDLER = (StringConvertor, PathConvertor, FloatConvertor)
"""What leaves it to the handler to say which spellings are one."""


def _add_handlers(app: Starlette, handlers: _Handlers) -> None:
    """Add those of which it has none."""
    for error, handler in handlers.items():
        app.exception_handlers.setdefault(error, handler)


def _check_routes(
    routes: Sequence[BaseRoute],
    handlers: _Handlers,
    outside: Mapping[str, Any] | None = None,
) -> None:
    """Examine all, those of mounted applications too, which get the handlers.

    ``outside``: the parts of the path that it is mounted on.

    Raises:
        ConfigurationError: one does not fit.
    """
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
    """Refuse mounted applications that have locks which nothing has opened.

    An application runs the lifespans of those mounted in it only if its own says so.

    Raises:
        ConfigurationError: there is one.
    """
    for route in _flat_routes(routes):
        if (mounted := _mounted(route)) is None:
            continue
        site = getattr(getattr(mounted, "state", None), KEY, None)
        if isinstance(site, AppLocks) and site.opened is None:
            path = getattr(route, "path", "") or getattr(route, "host", "")
            raise ConfigurationError(
                what=f"the application mounted on {quoted(path)} has locks of its own, "
                "which nothing opens",
                hint=MOUNTED,
            )
        _check_mounted(getattr(mounted, "routes", ()))


def _mounted(route: Any) -> ASGIApp | None:  # noqa: ANN401 - a route of any kind
    """Return what is mounted there, without the middlewares of the mount."""
    original = getattr(route, "original_route", route)
    if not isinstance(original, Mount | Host):
        return None
    app: ASGIApp = getattr(original, "_base_app", original.app)
    return app


def _check_route(route: Any, dependant: Dependant, kinds: dict[str, Any]) -> None:  # noqa: ANN401 - a route of any kind
    tree = list(_dependants(dependant))
    mine: list[HoldSpec] = []
    for each in tree:
        if each.call is not None and each.call in _hold_specs:
            mine.append(_hold_specs[each.call])
            continue
        for field in each.path_params:
            if kinds.get(field.alias, ...) is str:
                kinds[field.alias] = field.field_info.annotation
    original = getattr(route, "original_route", route)
    for hold in mine:
        if isinstance(original, routing.APIWebSocketRoute):
            raise ConfigurationError(
                what=f"{quoted(hold)} is for HTTP, not for websockets"
            )
        hold.check(route.path, kinds)


def _path_parameters(path: str) -> dict[str, Any]:
    """The parts of a path; None: read by the path itself, so that spellings are one."""
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
    """Newer FastAPIs keep included routers as they are, older ones copy routes."""
    contexts = getattr(routing, "iter_route_contexts", None)
    yield from routes if contexts is None else contexts(routes)


__all__ = [
    "FenceDep",
    "LocksDep",
    "add_locks",
    "fence_header",
    "get_fence",
    "get_locks",
    "hold",
]

HUNG_UP = 499
"""For the log; nobody is there to read it."""


def add_locks(app: FastAPI, connecting: Connecting) -> None:
    """Give the application its ``Locks``: open while it runs, around its own lifespan.

    Also answers every ``LockError``, in applications mounted in this one, too; handlers
    of your own go before. At the start every ``hold`` is examined.

    Raises:
        ConfigurationError: it has its ``Locks`` already, it has started, or that is no
            ``connect(…)``.

    Raises (when the application starts):
        ConfigurationError: a ``hold`` does not fit the path it stands on.
        ConfigurationError: nothing has opened the ``Locks`` of a mounted application.
        BackendError: as ``connect``.
    """
    check_connecting(connecting)
    if hasattr(app.state, "aiorwlock_remote"):
        raise ConfigurationError(what="the application has its locks already")
    if app.middleware_stack is not None:
        raise ConfigurationError(what="the application has started already")
    app.state.aiorwlock_remote = site = AppLocks()
    handlers: _Handlers = {LockError: _lock_error, AcquireAbandoned: _hung_up}
    _add_handlers(app, handlers)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        _check_routes(app.routes, handlers)
        async with connecting as site.opened, inner(served) as state:
            _check_mounted(app.routes)
            yield state or {}

    app.router.lifespan_context = lifespan
    inside = app.build_middleware_stack
    # Around all middlewares, those that are added later too; add_middleware would put
    # this one inside of them.
    app.build_middleware_stack = lambda: LocksMiddleware(inside(), site)  # type: ignore[method-assign]


def get_locks(of: HTTPConnection | FastAPI) -> Locks:
    """The ``Locks`` of an application, or of that of a request or a websocket.

    Raises:
        ConfigurationError: it has none: no ``add_locks``, or its lifespan did not run.
    """
    if isinstance(of, FastAPI):
        return app_locks_of(of).locks
    return request_locks_of(of.scope).site.locks


async def _locks(connection: HTTPConnection) -> Locks:
    return get_locks(connection)


LocksDep = Annotated[Locks, Depends(_locks)]
"""A parameter of this type gets the ``Locks``; in handlers of websockets, too."""


def get_fence(request: Request) -> int:
    """The fence that came with the request in ``Lock-Fence``; see ``read_fence``.

    Raises:
        BadFence: there is none, or something else. Answered by 400.
    """
    return read_fence(request.headers.getlist(HEADER))


async def _fence(request: Request) -> int:
    return get_fence(request)


FenceDep = Annotated[int, Depends(_fence)]
"""A parameter of this type gets the fence of ``Lock-Fence``, else it is a 400."""


def hold(
    template: str,
    *,
    mode: Mode = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    scope: Literal["function", "request"] = "function",
    **options: Unpack[OptionArgs],
) -> params.Depends:
    """Hold a lock while the handler runs; what it gets is the ``Held``.

    ``template``: resource type, colon, id, with parts of the path in braces; say
    ``{id:int}`` or ``{id:uuid}`` where the handler reads it so. ``timeout`` in seconds.
    ``scope="function"`` releases before the answer is sent, so that a loss is still
    answered by 503; with ``"request"`` a streamed body is under the lock, too, and a
    loss cuts it off. Losing the lock cancels the handler. A client that hangs up ends
    the wait; a handler that has begun goes on.

    Raises:
        ConfigurationError: a template, a mode, a number, a reason or an option.
    """
    wanted = HoldSpec(template, mode, timeout, reason, options)

    async def held(
        aiorwlock_request: Request,
        **parts: Any,  # noqa: ANN401 - as the signature below says
    ) -> AsyncIterator[Held]:
        here = request_locks_of(aiorwlock_request.scope)
        locks = here.site.locks
        try:
            acquisition = wanted.acquisition(locks, parts)
        except PathNamesNoLock as exc:
            raise HTTPException(404) from exc
        try:
            async with acquisition.unless(here.gone) as grant:
                yield grant
        except Exception as exc:
            here.fail(exc)
            raise

    held.__signature__ = _signature(wanted)  # type: ignore[attr-defined]
    _hold_specs[held] = wanted
    return params.Depends(held, scope=scope)


def _signature(wanted: HoldSpec) -> Signature:
    """So that FastAPI reads the parts of the path, and answers 422 itself."""
    keyword = Parameter.KEYWORD_ONLY
    request = Parameter("aiorwlock_request", keyword, annotation=Request)
    unseen = Path(include_in_schema=False)
    parts = [
        Parameter(
            place.name,
            keyword,
            annotation=Annotated[Any if place.bare else place.kind, unseen],
        )
        for place in wanted.template.places
    ]
    return Signature([request, *parts])


async def _lock_error(connection: HTTPConnection, error: LockError) -> Response | None:
    here = request_locks_of(connection.scope)
    told = answer(error)
    if told is None:
        here.fail(error)
        raise error
    if isinstance(connection, WebSocket) and here.begun:
        with suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await connection.close(status.WS_1013_TRY_AGAIN_LATER)
        return None
    return JSONResponse(
        told.body, status_code=told.status, headers=told.headers, media_type=PROBLEM
    )


async def _hung_up(_: Request, error: AcquireAbandoned) -> Response:
    del error
    return Response(status_code=HUNG_UP)
