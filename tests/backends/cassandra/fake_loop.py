"""A fake event loop that runs on demand, and fake connections."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from socket import socket

from aiorwlock_remote.runtime.event_loop import SystemClock


class FakeLoop:
    """A host. What was to be done soon is done by ``turn``, in the caller's thread."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.calls: list[Callable[[], object]] = []
        self.readers: dict[socket, Callable[[], object]] = {}
        self.events: list[str] = []

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        self.calls.append(lambda: function(*args))

    def at_end(self, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError

    def reads(
        self, sock: socket, function: Callable[[], object]
    ) -> Callable[[], object]:
        self.readers[sock] = function

        def end() -> None:
            self.events.append("turned away")
            del self.readers[sock]

        return end

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class FakeConnection:
    """Notes who reads it; whether somebody waits for it is set from outside."""

    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop
        self.waited_for = False
        self.arrives_at = 1
        """The how-manieth read finds something."""
        self.asked = threading.Event()
        self.was_read = threading.Event()
        self.readers: list[threading.Thread] = []

    def read(self) -> None:
        self.readers.append(threading.current_thread())
        self._loop.events.append("read")
        if len(self.readers) >= self.arrives_at:
            self.waited_for = False
            self.was_read.set()

    def needs_help(self) -> bool:
        self.asked.set()
        return self.waited_for

    def close_socket(self) -> None:
        self._loop.events.append("closed")
