"""What runs in threads beside a loop, at a time that a history says.

One at a time: a thread goes on when what it waits for is there, or its time has come,
and the loop stands still until it waits again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from aiorwlock_remote._util.threads import start_thread

T = TypeVar("T")


class Threads:
    """Runs functions beside a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = threading.Semaphore(0)
        """The loop's."""
        self._given_up = False
        self._it = threading.local()
        self.waiting: dict[threading.Semaphore, asyncio.TimerHandle | None] = {}
        """The turns of those that have not ended."""
        self.begun: list[float] = []
        """When each of those that a task waits for was begun."""

    async def run_sync(
        self,
        function: Callable[[], T],
        *,
        abandon_on_cancel: bool,
        limiter: object,
    ) -> T:
        """As ``anyio.to_thread``'s; who is cancelled leaves it behind."""
        assert abandon_on_cancel
        assert limiter is not None
        now = self._loop.time()
        assert not self.begun or now > self.begun[-1], "there was no pause"
        self.begun.append(now)
        result: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                value = function()
            except Exception as exc:  # noqa: BLE001 - raised by who awaits it
                if not result.done():
                    result.set_exception(exc)
            else:
                if not result.done():
                    result.set_result(value)

        self.start(run, "asks")
        return await result

    def start(self, function: Callable[[], object], name: str) -> None:
        """As ``threads.start_thread``."""
        turn = threading.Semaphore(0)

        def run() -> None:
            self._it.turn = turn
            try:
                turn.acquire()
                if not self._given_up:
                    function()
            finally:
                self._turn.release()

        self.waiting[turn] = None
        start_thread(run, name)
        self._loop.call_soon(self._go_on, turn)

    def wait(self, deadline: float | None = None) -> None:
        """For any change, ``deadline`` at the latest; called in one of the threads."""
        turn: threading.Semaphore = self._it.turn
        self.waiting[turn] = (
            None
            if deadline is None
            else self._loop.call_at(deadline, self._go_on, turn)
        )
        self._turn.release()
        turn.acquire()
        if self._given_up:
            raise SystemExit

    def changed(self) -> None:
        """Whatever they wait for may be there."""
        for turn in self.waiting:
            self._loop.call_soon(self._go_on, turn)

    def end(self) -> None:
        """All that are left."""
        self._given_up = True
        for turn in list(self.waiting):
            self._go_on(turn)

    def _go_on(self, turn: threading.Semaphore) -> None:
        if turn in self.waiting:
            timer = self.waiting.pop(turn)
            if timer is not None:
                timer.cancel()
            turn.release()
            self._turn.acquire()


class Event:
    """As ``threading``'s."""

    def __init__(self, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = threads
        self._loop = loop
        self._set = False

    def set(self) -> None:
        self._set = True
        self._threads.changed()

    def wait(self, seconds: float) -> bool:
        end = self._loop.time() + seconds
        while not self._set and self._loop.time() < end:
            self._threads.wait(end)
        return self._set
