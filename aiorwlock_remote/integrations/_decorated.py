"""``hold`` as a decorator: what aiohttp, Django, Litestar and Starlette share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations._http import HoldSpec
from aiorwlock_remote.locks.held import Held

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])

RequestState = MutableMapping[Any, Any]
"""Where a framework keeps what belongs to one request."""

Begin = Callable[
    [tuple[Any, ...], Mapping[str, Any]],
    Awaitable[tuple[AbstractAsyncContextManager[Held], RequestState]],
]
"""Gets the arguments of one call of a handler; returns its lock, to be entered, and the
state of its request.
"""

_SPECS = "__aiorwlock_remote_hold__"


def hold_during(handler: H, spec: HoldSpec, begin: Begin, key: object) -> H:
    """Return a handler that runs under the lock of ``spec``.

    Meanwhile the state of the request has the grant as ``key``, for ``get_held``.
    """

    @wraps(handler)
    async def held(
        *given: Any,  # noqa: ANN401 - the handler's
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        holding, request = await begin(given, named)
        async with holding as grant:
            with shown(request, key, grant):
                return await handler(*given, **named)

    # Of a decorator above this one, only attributes reach the route's handler.
    setattr(held, _SPECS, [*specs_of(handler), spec])
    return cast("H", held)


@contextmanager
def shown(request: RequestState, key: object, grant: object) -> Iterator[None]:
    """Keep a grant in the state of a request while the block runs."""
    # A handler with two holds gets the inner grant only inside of it
    # (test_two_holds_give_the_inner_one).
    outer = request.get(key)
    request[key] = grant
    try:
        yield
    finally:
        del request[key]
        if outer is not None:
            request[key] = outer


def specs_of(handler: object) -> list[HoldSpec]:
    """Return the holds of a handler, the innermost first."""
    found: list[HoldSpec] = getattr(handler, _SPECS, [])
    return found


def grant_of(held: Any, where: str) -> Any:  # noqa: ANN401 - of either API
    """Return the grant ``held``; ``ConfigurationError`` if there is none."""
    if held is None:
        raise ConfigurationError(what=f"{where} has no hold", hint="@hold(…)")
    return held
