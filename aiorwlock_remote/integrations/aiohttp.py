"""aiohttp: handlers that hold a lock while they run.

::

    app = web.Application()
    add_locks(app, connect("redis://localhost/0"))


    @routes.post("/invoices/{id}")
    @hold("invoice:{id:int}")
    async def pay(request):
        held = get_held(request)


    web.run_app(app, handler_cancellation=True)

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``. With ``handler_cancellation`` a client that
disconnects cancels its handler, which leaves the queue or releases the lock; without
it, the handler goes on until it returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from inspect import isfunction
from typing import Any, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, WeakSet

from aiohttp import WSCloseCode, hdrs, web
from aiohttp.typedefs import Handler

from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._app_locks import AppLocks, has_locks, no_locks
from aiorwlock_remote.integrations._decorated import grant_of, hold_during, specs_of
from aiorwlock_remote.integrations._holding import Holding, RequestHolds
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    HoldSpec,
    JsonAnswer,
    NamesNoLock,
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

_APP_LOCKS = web.AppKey("APP_LOCKS", AppLocks)


def _key(name: str) -> Any:  # noqa: ANN401 - of any type
    # aiohttp has such keys since 3.14, and since then warns of strings.
    made = getattr(web, "RequestKey", None)
    return f"aiorwlock_remote.{name}" if made is None else made(name)


_HELD = _key("HELD")
_BEGUN = _key("BEGUN")
_HOLDS = _key("HOLDS")
_holders: WeakKeyDictionary[object, WeakSet[object]] = WeakKeyDictionary()
"""Handlers, and the functions that ``hold`` has wrapped around each."""
_routed: WeakSet[object] = WeakSet()
"""Functions that a route of any application leads to, with those inside of others."""

H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])


def add_locks(
    app: web.Application, connecting: Connecting, *, required: bool = True
) -> None:
    """Open the ``Locks`` of an application when it starts, and close them when it ends.

    They are opened before all other ``cleanup_ctx``. Every ``LockError`` gets an HTTP
    response, also in applications that were added to this one. When the application
    starts, each ``hold`` is compared with the path of its route.

    Args:
        app: The application.
        connecting: What ``connect(…)`` returned.
        required: False: the application starts although its store is down, answers 503
            to what needs locks, and connects as soon as it can. An error that no retry
            mends, such as a wrong URL, ends the start all the same.

    Raises:
        ConfigurationError: the application has its ``Locks`` already, or ``connecting``
            is not ``connect(…)``; or, when the application starts, a ``hold`` does not
            fit the path of its route.
        BackendError: the store failed when the application starts, with ``required``.
    """
    app_locks = AppLocks(connecting, required=required)
    if _answer_errors in app.middlewares:
        raise has_locks()

    async def opened(app: web.Application) -> AsyncIterator[None]:
        _check(app)
        async with app_locks.running():
            yield

    app[_APP_LOCKS] = app_locks
    app.on_shutdown.insert(0, _stop_waiting)
    # First, so that the user's own contexts have locks
    # (test_around_the_users_own_context).
    app.cleanup_ctx.insert(0, opened)
    # Outermost, so that errors of the user's middlewares are answered, too.
    app.middlewares.insert(0, _answer_errors)
    app.on_response_prepare.append(_begun)


def get_locks(of: web.Request | web.Application) -> Locks:
    """Return the ``Locks`` of an application or of a request's application.

    Raises:
        ConfigurationError: ``add_locks`` was not called, or the application has not
            started.
    """
    return _app_locks_of(of).locks


def stop_waiting(app: web.Application) -> None:
    """Let every request that waits for a ``hold`` be answered by 503, now and later.

    aiohttp's own server calls this function when it stops. Requests that hold a lock go
    on. The next start of the application ends it.

    Raises:
        ConfigurationError: ``add_locks`` was not called.
    """
    _app_locks_of(app).stop_waiting()


async def _stop_waiting(app: web.Application) -> None:
    stop_waiting(app)


async def health(request: web.Request) -> web.Response:
    """Handler for a readiness probe: 200 if the store answers in 2 s, else 503.

    Do not let a *liveness* probe call it: a restart mends no store.
    """
    return _response(await _app_locks_of(request).health())


def get_held(request: web.Request) -> Held:
    """Return the grant of the innermost ``hold`` around this handler.

    Raises:
        ConfigurationError: the handler has no ``hold``.
    """
    held: Held = grant_of(request.get(_HELD), f"the handler of {request.path}")
    return held


def get_fence(request: web.Request) -> int:
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
    **options: Unpack[OptionArgs],
) -> Callable[[H], H]:
    """Return a decorator: the handler holds a lock while it runs.

    For coroutine functions and methods; put it below the route's decorator. If the lock
    is lost, the handler is cancelled.

    The lock is released when all middlewares have ended: one of them may commit. A
    response that the handler returns is sent after the release; one that it streams is
    sent under the lock, and a loss cuts it off.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the handler converts them to that type. A
            path whose text cannot be converted is answered by 404.
            ``{query.id:int}`` is a part of the query, ``{body.id:int}`` of a JSON body;
            a request without such a part is answered by 422.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait; None: for ever.
        reason: Shown to other programs that want the lock.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid; when it decorates: the handler is
            no coroutine function.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)

    async def begin(
        given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[Holding, web.Request]:
        request = _request((*given, *named.values()))
        try:
            values = await _values(spec, request)
            holds = request.get(_HOLDS)
            return _app_locks_of(request).hold(spec, values, holds=holds), request
        except NamesNoLock as exc:
            if exc.status == web.HTTPNotFound.status_code:
                raise web.HTTPNotFound from exc
            raise web.HTTPUnprocessableEntity from exc

    def around(handler: H) -> H:
        if not is_async(handler):
            raise ConfigurationError(
                what=f"{handler!r} is no coroutine function",
                hint="decorate an async def, or a method of a View",
            )

        held = hold_during(handler, spec, begin, _HELD)
        if isfunction(handler):
            _holders.setdefault(handler, WeakSet()).add(held)
        return held

    return around


async def _values(spec: HoldSpec, request: web.Request) -> dict[str, object]:
    def values(body: str | bytes | None) -> dict[str, object]:
        return spec.values(request.match_info, partial(_query, request), body)

    if not spec.uses("body"):
        return values(None)
    read = values(await request.read())
    # `request.json()` decodes the body in the charset that the client names. In one
    # like UTF-7 the handler would work on another resource than the locked one
    # (test_a_charset_that_names_another_lock).
    try:
        text = await request.text()
    except (ValueError, LookupError, web.HTTPUnsupportedMediaType) as exc:
        raise spec.names_no_lock() from exc
    if values(text) != read:
        raise spec.names_no_lock()
    return read


def _query(request: web.Request, name: str) -> list[str]:
    return request.query.getall(name, [])


def _request(given: tuple[object, ...]) -> web.Request:
    # A method gets its object before the request, a View has the request.
    for each in given:
        if isinstance(each, web.Request):
            return each
        if isinstance(each, web.View):
            return each.request
    raise ConfigurationError(what="a handler with a hold was called without a request")


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if _HOLDS in request:  # of the application to which this one was added
            return await handler(request)
        request[_HOLDS] = holds = RequestHolds()
        return await holds.run(_released(request, handler, holds))
    except LockError as error:
        answered = _app_locks_of(request).answer(error)
        begun = request.get(_BEGUN)
        if answered is not None and isinstance(begun, web.WebSocketResponse):
            # Without a close frame, a client takes this for a broken network
            # (test_a_websocket_whose_lock_is_lost).
            await begun.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return cast("web.StreamResponse", begun)
        if answered is None or begun is not None:
            # aiohttp closes the connection, so that the client sees that the body is
            # not whole (test_a_lock_broken_in_a_stream_cuts_it_off).
            raise
        return _response(answered)


async def _released(
    request: web.Request, handler: Handler, holds: RequestHolds
) -> web.StreamResponse:
    try:
        return await handler(request)
    except (web.HTTPSuccessful, web.HTTPRedirection):
        # An answer of success, which is raised: a loss has to be reported in its place
        # (test_a_loss_before_the_commit_is_no_success).
        await holds.release()
        raise


def _response(answer: JsonAnswer) -> web.Response:
    return web.json_response(
        answer.body,
        status=answer.status,
        headers=answer.headers,
        content_type=answer.content_type,
    )


def _app_locks_of(of: web.Request | web.Application) -> AppLocks:
    app_locks = (of if isinstance(of, web.Application) else of.config_dict).get(
        _APP_LOCKS
    )
    if app_locks is None:
        raise no_locks()
    return app_locks


async def _begun(request: web.Request, response: web.StreamResponse) -> None:
    request[_BEGUN] = response


def _check(app: web.Application) -> None:
    routes = list(_routes(app))
    for _, route in routes:
        _routed.update(filter(isfunction, _layers(route.handler)))
    for resource, route in routes:
        if _passed_by(route.handler):
            raise ConfigurationError(
                what=f"the handler of {resource.canonical!r} lacks its hold",
                hint="put hold below the route's decorator",
            )
        pattern = resource.get_info().get("pattern")
        parts = dict.fromkeys(pattern.groupindex if pattern is not None else ())
        for spec in _holds(route.handler):
            spec.check(resource.canonical, parts)


def _routes(
    app: web.Application,
) -> Iterator[tuple[web.AbstractResource, web.AbstractRoute]]:
    for resource in app.router.resources():
        info = resource.get_info()
        if "app" in info:
            yield from _routes(info["app"])
        else:
            yield from ((resource, route) for route in resource)


def _layers(handler: object) -> Iterator[object]:
    while handler is not None:
        yield handler
        handler = getattr(handler, "__wrapped__", None)


def _passed_by(handler: object) -> bool:
    # The decorators are in the wrong order: a route has the bare handler, and no route
    # of any application has the held one
    # (test_above_the_routes_decorator_it_would_hold_nothing,
    # test_two_applications_with_and_without_a_hold).
    around = _holders.get(handler) if isfunction(handler) else None
    return around is not None and not any(each in _routed for each in around)


def _holds(handler: object) -> list[HoldSpec]:
    if isinstance(handler, type):
        methods = [getattr(handler, name.lower(), None) for name in hdrs.METH_ALL]
        return [spec for method in methods for spec in specs_of(method)]
    return specs_of(handler)
