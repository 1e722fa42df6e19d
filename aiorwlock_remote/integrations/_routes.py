"""Every ``hold`` of a FastAPI application, and whether it fits where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import routing
from fastapi.dependencies.models import Dependant
from starlette.applications import Starlette
from starlette.convertors import FloatConvertor, PathConvertor, StringConvertor
from starlette.routing import BaseRoute, Mount, compile_path

from aiorwlock_remote.core.shown import quoted
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations._http import Hold

holds: WeakKeyDictionary[Callable[..., Any], Hold] = WeakKeyDictionary()
"""The dependencies that ``hold`` made."""

Handlers = Mapping[Any, Callable[..., Any]]

_READ_LATER = (StringConvertor, PathConvertor, FloatConvertor)
"""What leaves it to the handler to say which spellings are one."""


def check_routes(
    app: Starlette, handlers: Handlers, outside: Mapping[str, Any] | None = None
) -> None:
    """Examine all, those of mounted applications too, which get the handlers.

    ``outside``: the parts of the path that it is mounted on.

    Raises:
        ConfigurationError: one does not fit.
    """
    for route in _flat(app.routes):
        mounted = getattr(route, "original_route", route)
        kinds = {**(outside or {}), **_converted(str(getattr(route, "path", "")))}
        if isinstance(mounted, Mount):
            if isinstance(inner := mounted.app, Starlette):
                for error, handler in handlers.items():
                    inner.exception_handlers.setdefault(error, handler)
                check_routes(inner, handlers, kinds)
            continue
        dependant = getattr(route, "dependant", None)
        if isinstance(dependant, Dependant):
            _check(route, dependant, kinds)


def _check(route: Any, dependant: Dependant, kinds: dict[str, Any]) -> None:  # noqa: ANN401 - a route of any kind
    tree = list(_all(dependant))
    mine: list[Hold] = []
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
