"""What every wire over a transport of asyncio does alike."""

from __future__ import annotations

import asyncio

from aiorwlock_remote.backends.redis.connection.protocol import Conversation


class TransportWire:
    """The outgoing half of a conversation, and its end. ``_gone``: nothing is left."""

    _transport: asyncio.Transport

    def __init__(self, talk: Conversation) -> None:
        """In the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._talk = talk
        self._gone = asyncio.Event()

    def wake(self) -> None:
        """Flush after what is ready to run in this tick."""
        self._loop.call_soon(self._talk.flush)

    def unsent(self) -> int:
        """Bytes the transport keeps."""
        return self._transport.get_write_buffer_size()

    def hang_up(self) -> None:
        """Close at once; the reading half meets that and tells."""
        self._transport.abort()

    async def aclose(self) -> None:
        """Close at once and wait until nothing is left."""
        self._transport.abort()
        await self._gone.wait()
