"""A transport that records what is written, and a handler that records its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from aiorwlock_remote.backends.redis.connection.protocol import Call, ProtocolHandler
from aiorwlock_remote.errors import BackendError

MORE = object()


class RecordingWire:
    """Never sends; ``commands()`` takes apart what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.woken: int = 0
        self.hung_up: bool = False
        self.waiting: int = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def wake(self) -> None:
        self.woken += 1

    def unsent(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.hung_up = True

    async def aclose(self) -> None:
        self.hung_up = True

    def commands(self) -> list[list[bytes]]:
        """Each command written since the last time."""
        reader = hiredis.Reader(notEnoughData=MORE)
        reader.feed(b"".join(self.written))
        self.written.clear()
        found: list[list[bytes]] = []
        while (command := reader.gets()) is not MORE:
            found.append(command)
        return found


class RecordingHandler(ProtocolHandler):
    """The calls of a protocol to its handler, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.events: list[str] = []
        self.error: BackendError | None = None
        self.unsent: list[Call[Any]] = []
        self.elsewhere: list[Call[Any]] = []

    def message_received(self, channel: bytes, payload: bytes) -> None:
        self.messages.append((channel, payload))

    def scripts_lost(self) -> None:
        self.events.append("holding")

    def ready(self) -> None:
        self.events.append("ready")

    def slot_unsubscribed(self, channel: bytes) -> None:
        self.events.append(f"unheard {channel.decode()}")

    def redirected(self, call: Call[Any], text: str) -> bool:
        """Takes care of MOVED, as a cluster does."""
        if text.startswith("MOVED"):
            self.elsewhere.append(call)
            return True
        return False

    def buffer_full(self) -> None:
        self.events.append("crowded")

    def connection_lost(self, error: BackendError, unsent: Sequence[Call[Any]]) -> None:
        self.events.append("ended")
        self.error = error
        self.unsent = list(unsent)
