"""Messages to and from one client, and the marks with which it breaks into a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.faults import Faults
from tests.servers.oracle.fields import NeedMore, Reader
from tests.servers.oracle.framing import Framing, Kind, Mark, Packet, leaves

T = TypeVar("T")


_BREAK = b""


class Hangup(Exception):
    """The session is over."""


class Channel:
    """Takes packets as they come, as a break may come at any time.

    ``busy``: from when all of a call has come until it is to be answered. ``broken``:
    the call is to end, and its answer is not wanted any more; a break that comes when
    nothing is done is answered all the same. ``silent``: no answers ever.
    """

    def __init__(
        self,
        framing: Framing,
        faults: Callable[[], Faults],
        cancel: Callable[[], Awaitable[None]],
    ) -> None:
        self.framing: Framing = framing
        self.busy: bool = False
        self.broken: bool = False
        self.silent: bool = False
        #: The message for a call that was broken into.
        self.cancelled: Callable[[], bytes] = bytes
        self._faults = faults
        self._cancel = cancel
        # What came, in its order: data, a break (nothing), or that there is no more.
        self._packets: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._received = b""
        self._was_reset = asyncio.Event()
        self._cancelling = asyncio.Lock()
        self._gone = False

    async def listen(self) -> None:
        """Until the client leaves; then whoever reads gets ``Hangup``."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    packet = await self.framing.read()
                    await self._faults().way_in()
                    if packet.kind == Kind.MARKER:
                        await self._marked(packet)
                    elif leaves(packet):
                        break
                    else:
                        self._packets.put_nowait(packet.body[2:])
        finally:
            self._gone = True
            self._was_reset.set()
            self._packets.put_nowait(None)

    async def _marked(self, packet: Packet) -> None:
        if packet.body[2] == Mark.RESET:
            # It may come right behind a break, before that is answered.
            self._forget()
            self._was_reset.set()
        elif not self.busy:
            self._was_reset.clear()
            self._packets.put_nowait(_BREAK)
        elif not self.broken:
            self._was_reset.clear()
            self.broken = True
            async with self._cancelling:
                await self._cancel()

    def _forget(self) -> None:
        """What the client sent before it was reset is not wanted any more."""
        self._received = b""
        came = [self._packets.get_nowait() for _ in range(self._packets.qsize())]
        for packet in came:
            if not packet:  # a break still has to be answered
                self._packets.put_nowait(packet)

    async def read(self, parse: Callable[[Reader], T]) -> T:
        """A message, as soon as all of it is there."""
        while True:
            if self._received:
                reader = Reader(self._received)
                try:
                    message = parse(reader)
                except NeedMore:
                    pass
                except OracleError:
                    self._received = b""  # nobody knows where the next one begins
                    raise
                else:
                    self._received = self._received[reader.at :]
                    return message
            packet = await self._packets.get()
            if packet is None:
                raise Hangup
            if packet == _BREAK:
                await self.answer_break()
            self._received += packet

    async def send(self, message: bytes) -> None:
        await self._way_out()
        self.framing.send_message(message)
        await self.framing.drain()

    async def answer_break(self) -> None:
        """Instead of the answer to a call, if there is one."""
        async with self._cancelling:  # lest it hits the next call
            pass
        await self.exchange_marks()
        self.broken = False
        await self.send(self.cancelled())

    async def exchange_marks(self) -> None:
        """Both sides forget what is on its way."""
        await self._send_mark(Mark.BREAK)
        if not self._gone:
            await self._was_reset.wait()
            self._was_reset.clear()
        if self._gone:
            raise Hangup
        await self._send_mark(Mark.RESET)

    async def _send_mark(self, mark: Mark) -> None:
        await self._way_out()
        self.framing.send_mark(mark)
        await self.framing.drain()

    async def _way_out(self) -> None:
        if self.silent:
            await asyncio.Event().wait()
        await self._faults().way_out()

    def abort(self) -> None:
        """Closed at once, without a word."""
        self.framing.abort()
        self._packets.put_nowait(None)
