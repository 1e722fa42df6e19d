"""A body of ``async with`` in a task of its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

import anyio


class Body:
    """Enters what it is given, and stays there until it is asked to end.

    ``held``: what it got. ``error``: what came out of it in the end.
    """

    def __init__(self, lock: AbstractAsyncContextManager[Any]) -> None:
        self.held: Any = None
        self.error: BaseException | None = None
        self._lock = lock
        self._tasks = anyio.create_task_group()
        self._how = ""
        self._entered, self._left = anyio.Event(), anyio.Event()
        self._end = anyio.Event()
        self._own: BaseException | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        await self._entered.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.__aexit__(kind, exc, trace)

    def end(self, error: BaseException | None = None) -> None:
        """Let the body end, with that error of its own."""
        self._own = error
        self._end.set()

    async def left(self) -> str:
        """Wait until the lock has been left; ``ended`` or ``cancelled``, in between."""
        await self._left.wait()
        return self._how

    async def _run(self) -> None:
        try:
            async with self._lock as self.held:
                await self._stay()
        except Exception as exc:  # noqa: BLE001 - to be looked at
            self.error = exc
        self._left.set()

    async def _stay(self) -> None:
        self._how = "cancelled"
        self._entered.set()
        await self._end.wait()
        self._how = "ended"
        if self._own is not None:
            raise self._own
