"""Django: views that hold a lock while they run, async and sync ones.

::

    AIORWLOCK_REMOTE = {"store": "redis://localhost/0", "lease": 20}  # in settings.py
    MIDDLEWARE = [..., "aiorwlock_remote.integrations.django.views.LockErrorMiddleware"]


    @hold("invoice:{id:int}", timeout=2)
    async def pay(request, id):  # or: def pay(request, id)
        held = get_held(request)


    application = add_locks(get_asgi_application())  # in asgi.py

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``.

A loss cancels an async view; it cannot stop the thread of a sync one, so call
``held.check()`` there before what cannot be undone.

Under ``ATOMIC_REQUESTS`` the transaction of a sync view begins when its lock is held
and ends before the release.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import wraps
from typing import Any, ClassVar, TypeVar, Unpack, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponseBase, JsonResponse

from aiorwlock_remote import sync
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._app_locks import AppLocks, on_stop_signal
from aiorwlock_remote.integrations._asgi import (
    KEY,
    ASGIApp,
    LocksMiddleware,
    Receive,
    RequestLocks,
    Scope,
    Send,
)
from aiorwlock_remote.integrations._decorated import (
    RequestState,
    grant_of,
    hold_during,
    shown,
)
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    HoldSpec,
    JsonAnswer,
    NamesNoLock,
)
from aiorwlock_remote.integrations._sync_app import SyncAppLocks
from aiorwlock_remote.locks.connect import Connecting, connect
from aiorwlock_remote.locks.decorators import is_async
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import OptionArgs
from aiorwlock_remote.sync.transactions import refuse_transactions

__all__ = [
    "LockErrorMiddleware",
    "add_locks",
    "fence_header",
    "get_fence",
    "get_held",
    "get_locks",
    "health",
    "hold",
]

SETTING = "AIORWLOCK_REMOTE"

_HELD = "_aiorwlock_remote_held"

V = TypeVar("V", bound=Callable[..., Any])


def add_locks(application: ASGIApp, *, required: bool = True) -> ASGIApp:
    """Return an ASGI application whose async views share one ``Locks``.

    The ``Locks`` is opened when the server starts the application, and closed when it
    ends: the server has to support ASGI's lifespan, as uvicorn and hypercorn do. Behind
    a server that does not, and in Django's test clients, each async view with a hold
    opens a ``Locks`` of its own.

    Args:
        application: What ``get_asgi_application()`` returned.
        required: False: the application starts although its store is down, answers 503
            to what needs locks, and connects as soon as it can.

    Raises:
        ConfigurationError: the settings lack ``AIORWLOCK_REMOTE``.
    """
    app_locks = AppLocks(_connecting(), required=required)
    served = LocksMiddleware(application, app_locks)

    async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(app_locks, receive, send)
        elif app_locks.opened:
            await served(scope, receive, send)
        else:
            await application(scope, receive, send)

    return with_lifespan


async def _lifespan(app_locks: AppLocks, receive: Receive, send: Send) -> None:
    # Django has no lifespan of its own.
    await receive()
    started = False
    try:
        with on_stop_signal(app_locks.stop_waiting):
            async with app_locks.running():
                await send({"type": "lifespan.startup.complete"})
                started = True
                await receive()
    except Exception as exc:
        event = "shutdown" if started else "startup"
        await send({"type": f"lifespan.{event}.failed", "message": str(exc)})
        raise
    await send({"type": "lifespan.shutdown.complete"})


def get_locks() -> sync.Locks:
    """Return the ``Locks`` of synchronous views; no event loop may run in the thread.

    Raises:
        ConfigurationError: the settings lack ``AIORWLOCK_REMOTE``.
        BackendUnavailable: the store could not be reached yet.
    """
    return _app_locks.locks


def get_held(request: HttpRequest) -> Any:  # noqa: ANN401 - of either API
    """Return the grant of the innermost ``hold`` around this view.

    It is a ``Held``: in a sync view that of ``aiorwlock_remote.sync``.

    Raises:
        ConfigurationError: the view has no ``hold``.
    """
    return grant_of(getattr(request, _HELD, None), f"the view of {request.path}")


def get_fence(request: HttpRequest) -> int:
    """Return the fence in the request's header ``Lock-Fence``, which the client sets.

    Raises:
        BadFence: the header is missing or no fence. Answered by 400.
    """
    found = request.headers.get(HEADER)
    return read_fence([] if found is None else [found])


def hold(
    template: str,
    *,
    mode: LockModeName = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    **options: Unpack[OptionArgs],
) -> Callable[[V], V]:
    """Return a decorator: the view holds a lock while it runs.

    For views and methods of class-based views, async and sync ones. The response is
    made under the lock and sent after the release; the content of a
    ``StreamingHttpResponse`` is made after it, too.

    Under ``ATOMIC_REQUESTS`` the transaction of a sync view begins inside of the lock,
    unless the view is marked ``non_atomic_requests``; it is rolled back if the lock was
    lost meanwhile. A method of a class-based view is called after the transaction has
    begun, and refused: decorate ``dispatch``, or mark the class.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the path or the view converts them to that
            type. A path whose text cannot be converted is answered by 404.
            ``{query.id:int}`` is a part of the query, ``{body.id:int}`` of a JSON body;
            a request without such a part is answered by 422.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait; None: for ever.
        reason: Shown to other programs that want the lock.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid; when the view is called: it is
            inside of ``atomic()``.
    """
    spec = HoldSpec(template, mode, timeout, reason, options)

    def around(view: V) -> V:
        made = _around_async(spec, view) if is_async(view) else _around(spec, view)
        return cast("V", made)

    return around


class LockErrorMiddleware:
    """Answers every ``LockError`` of a view with its status and ``Retry-After``.

    Also those of row locks and of occupied objects. An error that shows a bug is left
    to Django.
    """

    sync_capable: ClassVar[bool] = True
    async_capable: ClassVar[bool] = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:  # noqa: ANN401 - or its coroutine
        return self._get_response(request)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Return the response to a ``LockError``; Django calls this method."""
        if not isinstance(exception, LockError):
            return None
        here = _request_locks(request)
        app_locks = _app_locks if here is None else here.app_locks
        response = app_locks.answer(exception)
        return None if response is None else _response(response)


def health(request: HttpRequest) -> HttpResponseBase:
    """View for a readiness probe: 200 if the store answers, else 503.

    Do not let a *liveness* probe call it: a restart mends no store.
    """
    del request
    return _response(_app_locks.health())


class _AtomicInside(set[str]):
    """What ``transaction.non_atomic_requests`` has excluded of a view with a hold.

    Django asks it whether to begin the transaction around the view. The answer is that
    no database wants one: the hold begins it inside of the lock.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def aliases(self) -> list[str]:
        """Return the databases for whose transactions the hold has to care."""
        excluded = list(self)
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and alias not in excluded
        ]


_EXCLUDED = "_non_atomic_requests"


def _around(spec: HoldSpec, view: Callable[..., Any]) -> Callable[..., Any]:
    excluded: set[str] = getattr(view, _EXCLUDED, set())
    # Of several holds the innermost one begins the transaction.
    innermost = not isinstance(excluded, _AtomicInside)

    @wraps(view)
    def held(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - the view's
        request = _request(given)
        refuse_transactions(
            f"the view of {request.path} has a hold",
            hint="put @hold above @transaction.atomic; if the view is a method under "
            "ATOMIC_REQUESTS, decorate its class, too: @method_decorator("
            'transaction.non_atomic_requests, name="dispatch")',
        )
        try:
            values = _values(spec, request, named)
            with _app_locks.hold(spec, values) as grant, ExitStack() as atomic:
                for alias in _atomic_inside(request) if innermost else ():
                    atomic.enter_context(transaction.atomic(using=alias))
                with shown(request.__dict__, _HELD, grant):
                    response = view(*given, **named)
                # So that the changes of a view without its lock are rolled back
                # (test_a_lost_lock_rolls_back).
                grant.check_before_commit()
                return response
        except NamesNoLock as exc:
            return _names_no_lock(exc)

    if innermost:
        setattr(held, _EXCLUDED, _AtomicInside(excluded))
    return held


def _atomic_inside(request: HttpRequest) -> list[str]:
    # Only if Django has seen the mark: it is on the view that the path has found.
    found = request.resolver_match
    mark = None if found is None else getattr(found.func, _EXCLUDED, None)
    return mark.aliases() if isinstance(mark, _AtomicInside) else []


def _around_async(spec: HoldSpec, view: Callable[..., Any]) -> Callable[..., Any]:
    async def begin(
        given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[AbstractAsyncContextManager[Held], RequestState]:
        request = _request(given)
        values = _values(spec, request, named)
        return _hold(request, spec, values), request.__dict__

    inner = hold_during(view, spec, begin, _HELD)

    @wraps(view)
    async def held(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - the view's
        try:
            return await inner(*given, **named)
        except NamesNoLock as exc:
            return _names_no_lock(exc)

    return held


@asynccontextmanager
async def _hold(
    request: HttpRequest, spec: HoldSpec, values: Mapping[str, object]
) -> AsyncIterator[Held]:
    here = _request_locks(request)
    if here is not None:
        async with here.app_locks.hold(spec, values) as held:
            yield held
        return
    app_locks = AppLocks(_connecting())
    async with app_locks.running(), app_locks.hold(spec, values) as held:
        yield held


def _request_locks(request: HttpRequest) -> RequestLocks | None:
    found = getattr(request, "scope", {}).get(KEY)
    return found if isinstance(found, RequestLocks) else None


def _request(given: tuple[object, ...]) -> HttpRequest:
    # A method gets its object before the request. Django REST framework's `Request`,
    # which passes attributes on, is no `HttpRequest`.
    for each in given:
        if isinstance(each, HttpRequest) or hasattr(each, "resolver_match"):
            return cast("HttpRequest", each)
    raise ConfigurationError(what="a view with a hold was called without a request")


def _values(
    spec: HoldSpec, request: HttpRequest, named: Mapping[str, object]
) -> Mapping[str, object]:
    for parameter in spec.template.parameters:
        if parameter.source == "path" and parameter.name not in named:
            raise ConfigurationError(
                what=f"{quoted(spec)} needs {{{parameter.name}}}, the path of the view "
                "does not have it"
            )
    body = request.body if spec.uses("body") else None

    def query(name: str) -> list[str]:
        found: list[str] = cast("Any", request.GET).getlist(name)
        return found

    return spec.values(named, query, body)


def _names_no_lock(error: NamesNoLock) -> HttpResponseBase:
    if error.status == 404:
        raise Http404 from error
    return JsonResponse({}, status=error.status)


def _response(answer: JsonAnswer) -> HttpResponseBase:
    return JsonResponse(
        answer.body,
        status=answer.status,
        headers=answer.headers,
        content_type=answer.content_type,
    )


def _configuration() -> dict[str, Any]:
    found: object = getattr(settings, SETTING, None)
    if not isinstance(found, Mapping) or "store" not in found:
        raise ConfigurationError(
            what=f"the settings have no {SETTING}",
            hint=f'{SETTING} = {{"store": "redis://localhost/0"}}',
        )
    return dict(cast("Mapping[str, Any]", found))


def _connecting() -> Connecting:
    return connect(**_configuration())


def _connect_sync() -> sync.Locks:
    return sync.connect(**_configuration())


_app_locks = SyncAppLocks(_connect_sync)


def _forget(*, setting: str, **_: object) -> None:
    # Tests change settings. A thread, as an event loop may run in this one.
    if setting == SETTING:
        thread = threading.Thread(target=_app_locks.close)
        thread.start()
        thread.join()


setting_changed.connect(_forget)
