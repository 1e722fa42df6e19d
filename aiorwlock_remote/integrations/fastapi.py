"""FastAPI: handlers that hold a lock while they run.

::

    app = FastAPI()
    add_locks(app, connect("redis://localhost/0"))


    @app.post("/invoices/{id}")
    async def pay(id: int, held: Annotated[Held, hold("invoice:{id:int}")]): ...

Not obtained in time is answered by 423 and ``Retry-After``, a lock lost or a store that
is down by 503, a fence that is too old by 412, each as ``application/problem+json``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, Unpack

from fastapi import (
    Depends,
    FastAPI,
    HTTPException,
    Path,
    Request,
    WebSocket,
    WebSocketDisconnect,
    params,
    status,
)
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._asgi import (
    AppLocks,
    LocksMiddleware,
    site_of,
    visit,
)
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    PROBLEM,
    HoldSpec,
    Mode,
    NoSuchPath,
    answer,
    check_connecting,
)
from aiorwlock_remote.integrations._routes import (
    Handlers,
    add_handlers,
    check_mounted,
    check_routes,
    holds,
)
from aiorwlock_remote.locks.acquirers import AcquireAbandoned
from aiorwlock_remote.locks.client import Locks
from aiorwlock_remote.locks.connect import Connecting
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.option_args import OptionArgs

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
    handlers: Handlers = {LockError: _lock_error, AcquireAbandoned: _hung_up}
    add_handlers(app, handlers)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        check_routes(app.routes, handlers)
        async with connecting as site.opened, inner(served) as state:
            check_mounted(app.routes)
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
        return site_of(of).locks
    return visit(of.scope).site.locks


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
        here = visit(aiorwlock_request.scope)
        locks = here.site.locks
        try:
            acquisition = wanted.acquisition(locks, parts)
        except NoSuchPath as exc:
            raise HTTPException(404) from exc
        try:
            async with acquisition.unless(here.gone) as grant:
                yield grant
        except Exception as exc:
            here.fail(exc)
            raise

    held.__signature__ = _signature(wanted)  # type: ignore[attr-defined]
    holds[held] = wanted
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
    here = visit(connection.scope)
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
