"""Flask: views that hold a lock while they run, over ``aiorwlock_remote.sync``.

::

    app = Flask(__name__)
    add_locks(app, lambda: connect("redis://localhost/0"))


    @app.post("/invoices/<int:id>")
    @hold("invoice:{id:int}")
    def pay(id):
        held = get_held()

A request that does not get its lock in time is answered by 423 with ``Retry-After``, a
lock that is lost or a store that is down by 503, and a fence that is too old by 412,
each as ``application/problem+json``. A loss cannot stop a thread: call ``held.check()``
before what cannot be undone.

The lock is released after the functions of ``teardown_request`` and
``teardown_appcontext``, in which many applications commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, final

from flask import Flask, Response, current_app, g, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import abort
from werkzeug.wsgi import ClosingIterator

from aiorwlock_remote.core.ticket import LockModeName
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.header import HEADER, fence_header, read_fence
from aiorwlock_remote.integrations._app_locks import has_locks, no_locks
from aiorwlock_remote.integrations._decorated import grant_of
from aiorwlock_remote.integrations._http import (
    DEFAULT_TIMEOUT,
    HoldSpec,
    JsonAnswer,
    NamesNoLock,
)
from aiorwlock_remote.integrations._sync_app import SyncAppLocks
from aiorwlock_remote.locks.decorators import is_async
from aiorwlock_remote.sync import Held, Locks, OptionArgs

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = [
    "add_locks",
    "fence_header",
    "get_fence",
    "get_held",
    "get_locks",
    "health",
    "hold",
]

P = ParamSpec("P")
T = TypeVar("T")

_EXTENSION = "aiorwlock_remote"
_HELD = "aiorwlock_remote_held"
_HOLDS = "aiorwlock_remote.holds"


def add_locks(app: Flask, connect: Callable[[], Locks]) -> None:
    """Give an application its ``Locks``, and an HTTP response to every ``LockError``.

    ``connect()`` is called when a request needs a lock first, in each process. If the
    store is down then, the request is answered by 503, and a later one connects.

    Args:
        app: The application.
        connect: Returns the ``Locks``: ``lambda: connect("redis://localhost/0")``, with
            the ``connect`` of ``aiorwlock_remote.sync``.

    Raises:
        ConfigurationError: the application has its ``Locks`` already, or ``connect`` is
            no function.
    """
    given: object = connect
    if not callable(given):
        raise ConfigurationError(
            what=f"no locks can be opened from {type(given).__name__}",
            hint="add_locks(app, lambda: connect(…))",
        )
    if _EXTENSION in app.extensions:
        raise has_locks()
    app_locks = app.extensions[_EXTENSION] = SyncAppLocks(connect)
    app.register_error_handler(LockError, _answer)
    app.teardown_request(_request_left)
    inner: Any = app.wsgi_app
    app.wsgi_app = _ReleasesLate(inner, app_locks)  # type: ignore[method-assign]


def get_locks(app: Flask | None = None) -> Locks:
    """Return the ``Locks`` of an application; None: of the one that runs now.

    Raises:
        ConfigurationError: ``add_locks`` was not called.
        BackendUnavailable: the store could not be reached yet.
    """
    return _app_locks(app).locks


def get_held() -> Held:
    """Return the grant of the innermost ``hold`` around this view.

    Raises:
        ConfigurationError: the view has no ``hold``.
    """
    held: Held = grant_of(g.get(_HELD), f"the view of {request.path}")
    return held


def get_fence() -> int:
    """Return the fence in the request's header ``Lock-Fence``, which the client sets.

    Raises:
        BadFence: the header is missing or no fence. Answered by 400.
    """
    return read_fence(request.headers.getlist(HEADER))


def hold(
    template: str,
    *,
    mode: LockModeName = "write",
    timeout: float | None = DEFAULT_TIMEOUT,
    reason: str = "",
    **options: Unpack[OptionArgs],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: the view holds a lock while it runs.

    Put it below the route's decorator. If the lock is lost, ``get_held().check()`` and
    the end of the view raise ``LockLost``, which is answered by 503. The lock is
    released after the functions of ``teardown_request`` and ``teardown_appcontext``, so
    that a transaction that ends there ends inside of the lock. The response is sent
    after the release, also a streamed one.

    Args:
        template: Resource type, colon, id, with parameters of the path in braces:
            ``{id:int}`` or ``{id:uuid}`` if the path or the view converts them to that
            type. A path whose text cannot be converted is answered by 404.
            ``{query.id:int}`` is a part of the query, ``{body.id:int}`` of a JSON body;
            a request without such a part is answered by 422.
        mode: ``"write"`` or ``"read"``.
        timeout: Seconds to wait, shorter than the time that the server gives a request
            when it stops; None: for ever.
        reason: Shown to other programs that want the lock.
        **options: As those of ``locks.rwlock``.

    Raises:
        ConfigurationError: an argument is not valid; when it decorates: the view is a
            coroutine function.
    """
    spec = HoldSpec(template, mode, timeout, reason, cast("Any", options))

    def around(view: Callable[P, T]) -> Callable[P, T]:
        if is_async(view):
            raise ConfigurationError(
                what=f"{view!r} is a coroutine function, whose loop this would block",
                hint="decorate a def",
            )

        @wraps(view)
        def held(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                body = request.get_data() if spec.uses("body") else None
                path = request.view_args or {}
                values = spec.values(path, _query, body)
                with ExitStack() as hold:
                    grant = hold.enter_context(_app_locks().hold(spec, values))
                    outer = g.get(_HELD)
                    setattr(g, _HELD, grant)
                    try:
                        response = view(*args, **kwargs)
                        # A loss by now is answered by the application's handlers.
                        grant.check_before_commit()
                        return response
                    finally:
                        setattr(g, _HELD, outer)
                        _release_later(hold)
            except NamesNoLock as exc:
                abort(exc.status)

        return held

    return around


def health() -> ResponseReturnValue:
    """View for a readiness probe: 200 if the store answers, else 503.

    Do not let a *liveness* probe call it: a restart mends no store.
    """
    return _response(_app_locks().health())


@final
class _Holds:
    """The grants of one request, released when its contexts have been left."""

    def __init__(self) -> None:
        self.grants: ExitStack = ExitStack()
        self.request_left: bool = False


def _release_later(hold: ExitStack) -> None:
    # Without the application's `wsgi_app` (`test_request_context`) nothing says when
    # the contexts are left: there the end of the view releases.
    holds: _Holds | None = request.environ.get(_HOLDS)
    if holds is not None:
        # With the view's error: a loss must not replace it.
        holds.grants.callback(hold.pop_all().__exit__, *sys.exc_info())


def _request_left(_error: BaseException | None) -> None:
    if (holds := request.environ.get(_HOLDS)) is not None:
        holds.request_left = True


@final
class _ReleasesLate:
    """WSGI application that releases the grants of a request when Flask has left it.

    Invariants (test_flask_transactions.py):

    - A grant is released after the functions of ``teardown_request`` and
      ``teardown_appcontext``, also if one of them raises, and at the latest when the
      response is closed.
    - If the lock was lost until then, the client gets the response to that error.
    """

    def __init__(self, application: WSGIApplication, app_locks: SyncAppLocks) -> None:
        self._application = application
        self._app_locks = app_locks

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        outer, holds = environ.get(_HOLDS), _Holds()
        environ[_HOLDS] = holds
        start = _LateStart(start_response)
        try:
            body = self._application(environ, start)
        except BaseException:
            # A loss must not replace the error.
            with suppress(LockError):
                holds.grants.close()
            raise
        finally:
            environ[_HOLDS] = outer
        if not holds.request_left:
            # `stream_with_context` of Flask 3.0: the end of the stream leaves the
            # contexts, and may raise (test_a_stream_that_is_closed_early).
            start.begin()
            end = ExitStack()
            end.push(holds.grants)
            end.callback(ClosingIterator(body).close)
            return ClosingIterator(chain(body), end.close)
        try:
            holds.grants.close()
        except LockError as error:
            ClosingIterator(body).close()
            response = self._app_locks.answer(error)
            if response is None:
                raise
            return _response(response)(environ, start_response)
        start.begin()
        return body


@final
class _LateStart:
    """``start_response`` whose call waits until the grants have been released."""

    def __init__(self, start_response: StartResponse) -> None:
        self._start_response = start_response
        self._later: list[tuple[Any, ...]] | None = []
        self._write: Any = None

    def __call__(self, *response: Any) -> Any:  # noqa: ANN401 - of WSGI
        if self._later is None:
            return self._start_response(*response)
        self._later = [response]
        return self._begin_and_write

    def begin(self) -> None:
        """Pass the call on, and those that come later."""
        for response in self._later or ():
            self._write = self._start_response(*response)
        self._later = None

    def _begin_and_write(self, data: bytes) -> object:
        self.begin()
        return self._write(data)


def _query(name: str) -> list[str]:
    return request.args.getlist(name)


def _answer(error: LockError) -> ResponseReturnValue:
    response = _app_locks().answer(error)
    if response is None:
        raise error
    return _response(response)


def _response(answer: JsonAnswer) -> Response:
    return Response(
        json.dumps(answer.body),
        answer.status,
        answer.headers,
        mimetype=answer.content_type,
    )


def _app_locks(app: Flask | None = None) -> SyncAppLocks:
    found = (app or current_app).extensions.get(_EXTENSION)
    if found is None:
        raise no_locks()
    return cast("SyncAppLocks", found)
