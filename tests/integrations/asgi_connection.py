"""The server's end of one request, for tests without a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Scope

LEAVES: Message = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def scope_of(path: str, *headers: tuple[bytes, bytes], **more: Any) -> Scope:  # noqa: ANN401
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [*headers],
        **more,
    }


class Line:
    """What the client sends, how it was asked for, and what was answered."""

    def __init__(self, *sent: Message | Exception) -> None:
        self.asked = 0
        self.taken = 0
        self.cancelled = 0
        self.most_at_once = 0
        self.answer: list[Message] = []
        self._at_once = 0
        self._sent = deque(sent)
        self._arrived = anyio.Event()

    def sends(self, *sent: Message | Exception) -> None:
        self._sent.extend(sent)
        self._arrived.set()

    async def receive(self) -> Message:
        self.asked += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            while not self._sent:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            message = self._sent.popleft()
            self.taken += 1
            # A wrapper like BaseHTTPMiddleware's has the message, and still waits.
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self._at_once -= 1
        if isinstance(message, Exception):
            raise message
        return message

    async def send(self, message: Message) -> None:
        self.answer.append(message)

    async def calls(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self.receive, self.send)

    @property
    def status(self) -> int:
        return int(self.answer[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.answer)


def parts(size: int, count: int) -> Iterable[Message]:
    """The first parts of a body that goes on."""
    return (part(bytes([number % 256]) * size) for number in range(count))
