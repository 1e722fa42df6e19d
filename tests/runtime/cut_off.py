"""Ways to cut a coroutine off at its k-th suspension."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from tests.runtime.cancel_at import CancelAt

Coro = Coroutine[Any, Any, None]


class Mine(Exception):
    """What a coroutine may fail with by itself."""


@dataclass(frozen=True)
class Outcome:
    """What came out. ``cancelled``: the cancellation; ``error``: anything else."""

    suspensions: int
    cancelled: bool
    error: BaseException | None


class Cut(Protocol):
    """Drives a coroutine and cuts it off; ``late``: as ``CancelAt``."""

    async def __call__(self, history: Coro, k: int, *, late: bool) -> Outcome: ...


async def by_scope(history: Coro, k: int, *, late: bool) -> Outcome:
    """An anyio scope cancelled at the k-th suspension."""
    scope, error = anyio.CancelScope(), None
    cut = CancelAt(history, k, scope.cancel, late=late)
    with scope:
        try:
            await cut
        except Mine as exc:
            error = exc
    return Outcome(cut.suspensions, scope.cancelled_caught, error)


def natively(times: int) -> Cut:
    """``Task.cancel()``, so many times, at the k-th suspension."""

    async def cut_off(history: Coro, k: int, *, late: bool) -> Outcome:
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            for _ in range(times):
                loop.call_soon(task.cancel)

        cut = CancelAt(history, k, cancel, late=late)

        async def run() -> None:
            await cut

        task = loop.create_task(run())
        (error,) = await asyncio.gather(task, return_exceptions=True)
        cancelled = isinstance(error, asyncio.CancelledError)
        return Outcome(cut.suspensions, cancelled, None if cancelled else error)

    return cut_off


async def by_timeout(history: Coro, k: int, *, late: bool) -> Outcome:
    """``asyncio.timeout`` that runs out at the k-th suspension."""
    error: BaseException | None = None
    timeout = asyncio.timeout(None)
    loop = asyncio.get_running_loop()
    cut = CancelAt(history, k, lambda: timeout.reschedule(loop.time()), late=late)
    try:
        async with timeout:
            await cut
    except (TimeoutError, Mine) as exc:
        error = exc
    cancelled = isinstance(error, TimeoutError)
    return Outcome(cut.suspensions, cancelled, None if cancelled else error)
