"""A background task of the event loop that sleeps, is woken, and runs one at a time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from aiorwlock_remote._util.pending import checkpoint

if TYPE_CHECKING:
    from aiorwlock_remote.ports import EventLoop

CANCEL_GRACE = 1.0
"""Seconds for which ``wait_closed`` waits: a loop that is ending may run no task."""


class BackgroundTask:
    """Runs ``run()`` as a background task of ``loop``; used in the loop's thread only.

    Invariants (tests/runtime/test_background_task.py):

    - At most one run exists at a time, however often ``start`` and ``wake`` are called.
    - A ``wake`` during a run is not lost: the next ``sleep_until`` returns at once.
    - A run that ended, failed or was cancelled can be started again; after ``stop``
      none can.
    """

    def __init__(self, loop: EventLoop, run: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._function = run
        self._running = False
        self._stopped = False
        self._woken_for = math.inf
        self._sleeping_until = -math.inf
        self._alarm: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended: anyio.Event | None = None

    def start(self) -> None:
        """Spawn a run, unless one exists or the task was stopped."""
        if not self._running and not self._stopped:
            self._running = True
            self._woken_for = math.inf
            self._loop.spawn(self._run)

    def wake(self, by: float = -math.inf) -> None:
        """Start a run if none exists; otherwise end its ``sleep_until`` early.

        ``by``: local monotonic time (s) by which the run must be awake: a sleep that
        ends before anyway is not cut short.
        """
        if not self._running:
            self.start()
        elif self._alarm is None:
            self._woken_for = min(self._woken_for, by)
        elif by < self._sleeping_until:
            self._alarm.set()

    async def sleep_until(self, time: float) -> None:
        """Sleep until ``wake`` or this local monotonic time (s); ``run`` calls it."""
        by, self._woken_for = self._woken_for, math.inf
        # Woken before it sleeps: the reason for the wake-up may have come after the
        # caller looked for it.
        if by < time:
            await checkpoint()
            return
        pause = max(0.0, time - self._loop.clock.now())
        self._alarm, self._sleeping_until = anyio.Event(), time
        try:
            with anyio.move_on_after(pause):
                await self._alarm.wait()
        finally:
            self._alarm = None

    def stop(self) -> None:
        """Cancel the present run; from now on ``start`` and ``wake`` do nothing."""
        self._stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait_closed(self) -> None:
        """Wait at most ``CANCEL_GRACE`` (1 s) for the run to end; not cancellable."""
        if self._running:
            self._ended = anyio.Event()
            with anyio.move_on_after(CANCEL_GRACE, shield=True):
                await self._ended.wait()

    async def _run(self) -> None:
        try:
            if not self._stopped:
                with anyio.CancelScope() as self._scope:
                    await self._function()
        finally:
            # Also if `asyncio.all_tasks()` were cancelled one by one: the next `start`
            # spawns a new run (test_whoever_cancels_all_tasks_ends_no_look_out).
            self._running, self._scope = False, None
            if self._ended is not None:
                self._ended.set()
