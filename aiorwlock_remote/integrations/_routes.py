"""Every ``hold`` of a FastAPI application, and whether it fits where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import routing
from fastapi.dependencies.models import Dependant
from starlette.applications import Starlette
from starlette.convertors import FloatConvertor, PathConvertor, StringConvertor
from starlette.routing import BaseRoute, Host, Mount, compile_path
from starlette.types import ASGIApp

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations._asgi import KEY, MOUNTED, AppLocks
from aiorwlock_remote.integrations._http import HoldSpec

holds: WeakKeyDictionary[Callable[..., Any], HoldSpec] = WeakKeyDictionary()
"""The dependencies that ``hold`` made."""

Handlers = Mapping[Any, Callable[..., Any]]

_READ_LATER = (StringConvertor, PathConvertor, FloatConvertor)
"""What leaves it to the handler to say which spellings are one."""


def add_handlers(app: Starlette, handlers: Handlers) -> None:
    """Add those of which it has none."""
    for error, handler in handlers.items():
        app.exception_handlers.setdefault(error, handler)


def check_routes(
    routes: Sequence[BaseRoute],
    handlers: Handlers,
    outside: Mapping[str, Any] | None = None,
) -> None:
    """Examine all, those of mounted applications too, which get the handlers.

    ``outside``: the parts of the path that it is mounted on.

    Raises:
        ConfigurationError: one does not fit.
    """
    for route in _flat(routes):
        kinds = {**(outside or {}), **_converted(str(getattr(route, "path", "")))}
        if (mounted := _mounted(route)) is not None:
            if isinstance(mounted, Starlette):
                add_handlers(mounted, handlers)
            check_routes(getattr(mounted, "routes", ()), handlers, kinds)
            continue
        dependant = getattr(route, "dependant", None)
        if isinstance(dependant, Dependant):
            _check(route, dependant, kinds)


def check_mounted(routes: Sequence[BaseRoute]) -> None:
    """Refuse mounted applications that have locks which nothing has opened.

    An application runs the lifespans of those mounted in it only if its own says so.

    Raises:
        ConfigurationError: there is one.
    """
    for route in _flat(routes):
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
        check_mounted(getattr(mounted, "routes", ()))


def _mounted(route: Any) -> ASGIApp | None:  # noqa: ANN401 - a route of any kind
    """Return what is mounted there, without the middlewares of the mount."""
    original = getattr(route, "original_route", route)
    if not isinstance(original, Mount | Host):
        return None
    app: ASGIApp = getattr(original, "_base_app", original.app)
    return app


def _check(route: Any, dependant: Dependant, kinds: dict[str, Any]) -> None:  # noqa: ANN401 - a route of any kind
    tree = list(_all(dependant))
    mine: list[HoldSpec] = []
    for each in tree:
        if each.call is not None and each.call in holds:
            mine.append(holds[each.call])
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


def _converted(path: str) -> dict[str, Any]:
    """The parts of a path; None: read by the path itself, so that spellings are one."""
    _, _, convertors = compile_path(path)
    return {
        name: str if isinstance(convertor, _READ_LATER) else None
        for name, convertor in convertors.items()
    }


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _all(inner)


def _flat(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    """Newer FastAPIs keep included routers as they are, older ones copy routes."""
    contexts = getattr(routing, "iter_route_contexts", None)
    yield from routes if contexts is None else contexts(routes)
