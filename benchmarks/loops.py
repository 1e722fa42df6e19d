"""The event loops to measure on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


def run(
    loop: str,
    function: Callable[[*Args], Awaitable[T]],
    *args: *Args,
) -> T:
    """Run to the end on that loop."""
    backend, options = LOOPS[loop]
    return anyio.run(function, *args, backend=backend, backend_options=options)
