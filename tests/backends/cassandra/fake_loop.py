"""A fake event loop that runs on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiorwlock_remote.runtime.event_loop import SystemClock


class FakeLoop:
    """A host. What was to be done soon is done by ``turn``, in the caller's thread."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.calls: list[Callable[[], object]] = []

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self.calls.append(lambda: function(*args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
