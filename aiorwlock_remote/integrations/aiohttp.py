"""aiohttp: handlers that hold a lock while they run.

::

    app = web.Application()
    add_locks(app, connect("redis://localhost/0"))


    @routes.post("/invoices/{id}")
    @hold("invoice:{id:int}")
    async def pay(request):
        held = get_held(request)


    web.run_app(app, handler_cancellation=True)

Not obtained in time is answered by 423 and ``Retry-After``, a lock lost or a store that
is down by 503, a fence that is too old by 412, each as ``application/problem+json``.
With ``handler_cancellation`` a client that hangs up cancels its handler, which then
leaves the queue or releases the lock; without, the handler goes on until it is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, WeakSet

from aiohttp import WSCloseCode, hdrs, web
from aiohttp.typedefs import Handler

from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
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

__all__ = [
    "add_locks",
    "fence_header",
    "get_fence",
    "get_held",
    "get_locks",
    "hold",
]

_LOCKS = web.AppKey("LOCKS", Locks)


def _key(name: str) -> Any:  # noqa: ANN401 - of any type
    # Before aiohttp 3.14 there were no such keys, since then it warns of others.
    made = getattr(web, "RequestKey", None)
    return f"aiorwlock_remote.{name}" if made is None else made(name)


_HELD = _key("HELD")
_BEGUN = _key("BEGUN")
_HOLD = "__aiorwlock_remote_hold__"
_holders: WeakKeyDictionary[object, WeakSet[object]] = WeakKeyDictionary()
"""Functions, and the holds that were put around them."""

H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])


def add_locks(app: web.Application, connecting: Connecting) -> None:
    """Give the application its ``Locks``: open while it runs, before all else.

    Also answers every ``LockError``, in applications added to this one, too. At the
    start every ``hold`` is examined.

    Raises:
        ConfigurationError: it has its ``Locks`` already, or that is no ``connect(…)``.

    Raises (when the application starts):
        ConfigurationError: a ``hold`` does not fit the path it stands on.
        BackendError: as ``connect``.
    """
    check_connecting(connecting)
    if _answer_errors in app.middlewares:
        raise ConfigurationError(what="the application has its locks already")

    async def opened(app: web.Application) -> AsyncIterator[None]:
        _check(app)
        async with connecting as app[_LOCKS]:
            yield

    app.cleanup_ctx.insert(0, opened)
    app.middlewares.insert(0, _answer_errors)
    app.on_response_prepare.append(_begun)


def get_locks(of: web.Request | web.Application) -> Locks:
    """The ``Locks`` of an application, or of the one that a request came to.

    Raises:
        ConfigurationError: no ``add_locks``, or it has not started.
    """
    locks = (of if isinstance(of, web.Application) else of.config_dict).get(_LOCKS)
    if locks is None:
        raise ConfigurationError(
            what="the application has no locks", hint="add_locks(app, connect(…))"
        )
    return locks


def get_held(request: web.Request) -> Held:
    """The grant of the ``hold`` around this handler, the innermost if there are more.

    Raises:
        ConfigurationError: there is none.
    """
    held = request.get(_HELD)
    if held is None:
        raise ConfigurationError(what="no hold around this handler")
    return cast("Held", held)


def get_fence(request: web.Request) -> int:
    """The fence that came with the request in ``Lock-Fence``; see ``read_fence``.

    Raises:
        BadFence: there is none, or something else. Answered by 400.
    """
    return read_fence(request.headers.getall(HEADER, []))


def hold(
    template: str,
    *,
    mode: Mode = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    **options: Unpack[OptionArgs],
) -> Callable[[H], H]:
    """Hold a lock while the handler runs: a coroutine function, or a method.

    ``template``: resource type, colon, id, with parts of the path in braces; say
    ``{id:int}`` or ``{id:uuid}`` where the handler reads it so; a path that does not
    read so is a 404. ``timeout`` in seconds. Losing the lock cancels the handler. A
    response that is returned is sent after the release; one that the handler streams
    is under the lock, and a loss cuts it off. Put it below the route's decorator.

    Raises:
        ConfigurationError: a template, a mode, a number, a reason or an option; when
            it decorates: not a coroutine function.
    """
    wanted = HoldSpec(template, mode, timeout, reason, options)

    def around(handler: H) -> H:
        if not _is_coroutine_function(handler):
            raise ConfigurationError(
                what=f"{handler!r} is no coroutine function",
                hint="holding is for async def, or a method of a View",
            )

        @wraps(handler)
        async def held(
            *given: Any,  # noqa: ANN401 - the handler's
            **named: Any,  # noqa: ANN401
        ) -> web.StreamResponse:
            request = _request((*given, *named.values()))
            locks = get_locks(request)
            try:
                acquisition = wanted.acquisition(locks, request.match_info)
            except PathNamesNoLock as exc:
                raise web.HTTPNotFound from exc
            async with acquisition as grant:
                outer = request.get(_HELD)
                request[_HELD] = grant
                try:
                    return await handler(*given, **named)
                finally:
                    request[_HELD] = outer

        setattr(held, _HOLD, [*getattr(handler, _HOLD, []), wanted])
        if isfunction(handler):
            _holders.setdefault(handler, WeakSet()).add(held)
        return cast("H", held)

    return around


def _is_coroutine_function(handler: object) -> bool:
    """Or something that is called like one."""
    call: object = getattr(type(handler), "__call__", None)  # noqa: B004 - not whether
    return iscoroutinefunction(handler) or iscoroutinefunction(call)


def _request(given: tuple[object, ...]) -> web.Request:
    """That of a handler's call; a method gets itself before it, a view only itself."""
    for one in given:
        if isinstance(one, web.Request):
            return one
        if isinstance(one, web.View):
            return one.request
    raise ConfigurationError(what="a handler with a hold was called without a request")


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except LockError as error:
        told = answer(error)
        begun = request.get(_BEGUN)
        if told is not None and isinstance(begun, web.WebSocketResponse):
            # Without a close frame, a client cannot tell this from a broken network.
            await begun.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return cast("web.StreamResponse", begun)
        if told is None or begun is not None:
            raise  # aiohttp closes the connection: what was sent is seen to be cut off
        return web.json_response(
            told.body, status=told.status, headers=told.headers, content_type=PROBLEM
        )


async def _begun(request: web.Request, response: web.StreamResponse) -> None:
    request[_BEGUN] = response


def _check(app: web.Application) -> None:
    routes = list(_routes(app))
    routed = {id(one) for _, route in routes for one in _layers(route.handler)}
    for resource, route in routes:
        if _passed_by(route.handler, routed):
            raise ConfigurationError(
                what=f"{resource.canonical!r} would not be held",
                hint="put hold below the route's decorator",
            )
        pattern = resource.get_info().get("pattern")
        parts = dict.fromkeys(pattern.groupindex if pattern is not None else ())
        for wanted in _holds(route.handler):
            wanted.check(resource.canonical, parts)


def _routes(
    app: web.Application,
) -> Iterator[tuple[web.AbstractResource, web.AbstractRoute]]:
    """Those of applications in it, too."""
    for resource in app.router.resources():
        info = resource.get_info()
        if "app" in info:
            yield from _routes(info["app"])
        else:
            yield from ((resource, route) for route in resource)


def _layers(handler: object) -> Iterator[object]:
    """The handler, and what decorators have put themselves around."""
    while handler is not None:
        yield handler
        handler = getattr(handler, "__wrapped__", None)


def _passed_by(handler: object, routed: set[int]) -> bool:
    """Whether a route has it as it was before a hold, and no route has the hold."""
    around = _holders.get(handler) if isfunction(handler) else None
    return around is not None and routed.isdisjoint(map(id, around))


def _holds(handler: object) -> list[HoldSpec]:
    """Those of a function, or of a View's methods."""
    if isinstance(handler, type):
        methods = [getattr(handler, name.lower(), None) for name in hdrs.METH_ALL]
        return [wanted for method in methods for wanted in getattr(method, _HOLD, [])]
    found: list[HoldSpec] = getattr(handler, _HOLD, [])
    return found
