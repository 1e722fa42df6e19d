"""The shape in which every lock is measured, and the event loops it is measured on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any, Protocol, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")

Cycle = AbstractAsyncContextManager[object]
"""A lock that is held inside the ``async with``, which is entered again and again. The
value that ``async with`` yields may have a ``fence``."""

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


class Client(Protocol):
    """The access of one process to the locks of one peer."""

    async def lock(self, key: str, mode: str) -> Cycle:
        """Return the lock that one task enters.

        Args:
            key: The resource; ``order/5`` is id 5 of the type ``order``.
            mode: ``mutex``, ``reader``, ``writer`` or ``any`` (any mutex of a set).
        """


Open = Callable[[str, float], AbstractAsyncContextManager[Client]]
"""Opens a client, given the server's URL and a lease in seconds."""


def peer_at(module: str, attribute: str) -> Open:
    """Return what opens a peer; ``module``: below ``benchmarks``, imported now."""
    found: Open = getattr(import_module(f"benchmarks.{module}"), attribute)
    return found


def run_on(loop: str, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run an async function to its end on the event loop of that name."""
    backend, options = LOOPS[loop]
    return anyio.run(function, *args, backend=backend, backend_options=options)


def row_of(key: str) -> tuple[str, int]:
    """Return type and integer id of a resource, as the published columns hold them."""
    kind, _, number = key.partition("/")
    return kind, int(number or 0)
