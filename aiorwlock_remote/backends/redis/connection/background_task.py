"""A task of the loop's own that can be called off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from aiorwlock_remote.ports import EventLoop

CANCEL_GRACE = 1.0


class BackgroundTask:
    """Runs a function in the background, one run at a time."""

    def __init__(
        self, host: EventLoop, function: Callable[[], Awaitable[None]]
    ) -> None:
        """Not started."""
        self._host = host
        self._function = function
        self._running = False
        self._stopped = False
        self._scope: anyio.CancelScope | None = None
        self._over: anyio.Event | None = None

    def start(self) -> None:
        """Run it, unless it runs or was called off."""
        if not self._running and not self._stopped:
            self._running = True
            self._host.spawn(self._run)

    def call_off(self) -> None:
        """End the run, if there is one, and start no more."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_closed(self) -> None:
        """Wait until a run that was called off has ended, even if cancelled ourselves.

        ``CANCEL_GRACE`` seconds at most: a loop that is ending runs nothing new.
        """
        if self._running:
            self._over = anyio.Event()
            with anyio.move_on_after(CANCEL_GRACE, shield=True):
                await self._over.wait()

    async def _run(self) -> None:
        try:
            if not self._stopped:
                with anyio.CancelScope() as self._scope:
                    await self._function()
        finally:
            self._running, self._scope = False, None
            if self._over is not None:
                self._over.set()
