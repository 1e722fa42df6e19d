"""Packets: what messages travel in, and the marks that break into a call."""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    CONNECT = 1
    ACCEPT = 2
    REFUSE = 4
    DATA = 6
    MARKER = 12


class Mark(IntEnum):
    BREAK = 1
    RESET = 2
    INTERRUPT = 3


class Packet(NamedTuple):
    kind: int
    body: bytes


_HEAD = 8
_LAST = 0x2000  # flag of a data packet: the response ends here
_OVER = 0x40  # flag of a data packet: the client is leaving
_END = b"\x1d"


class Framing:
    """One socket. Until the client is accepted lengths have two bytes, then four."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.accepted = False
        self.size = 8192
        self.ends_responses = False

    async def read(self) -> Packet:
        head = await self._reader.readexactly(_HEAD)
        size = int.from_bytes(head[: 4 if self.accepted else 2], "big")
        return Packet(head[4], await self._reader.readexactly(size - _HEAD))

    def send(self, kind: Kind, body: bytes) -> None:
        size = len(body) + _HEAD
        head = (
            size.to_bytes(4, "big")
            if self.accepted
            else size.to_bytes(2, "big") + b"\0\0"
        )
        self._writer.write(head + bytes((kind, 0, 0, 0)) + body)

    def send_message(self, message: bytes) -> None:
        """In as many packets as it takes."""
        if self.ends_responses:
            message += _END
        free = self.size - _HEAD - 2
        for at in range(0, max(len(message), 1), free):
            last = at + free >= len(message)
            flags = _LAST if self.ends_responses and last else 0
            body = flags.to_bytes(2, "big") + message[at : at + free]
            self.send(Kind.DATA, body)

    def send_mark(self, mark: Mark) -> None:
        self.send(Kind.MARKER, bytes((1, 0, mark)))

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Gone at once, whatever is still to be sent."""
        self._writer.transport.abort()


def leaves(packet: Packet) -> bool:
    """Whether the client says with it that it goes."""
    return bool(int.from_bytes(packet.body[:2], "big") & _OVER)


def refusal(code: int) -> bytes:
    """Body of the packet that refuses a client, e.g. for an unknown service."""
    text = (
        f"(DESCRIPTION=(TMP=)(VSNNUM=0)(ERR={code})"
        f"(ERROR_STACK=(ERROR=(CODE={code})(EMFI=4))))"
    ).encode()
    return b"\x22\0" + len(text).to_bytes(2, "big") + text


def acceptance(network: int, size: int, *, fast: bool, ends: bool) -> bytes:
    """Body of the packet that accepts a client."""
    flags = (0x10000000 if fast else 0) | (0x02000000 if ends else 0)
    body = network.to_bytes(2, "big") + b"\0\x01" + bytes(10) + b"\0" + bytes(9)
    if network < 315:  # lengths of four bytes came with it
        return body
    return body + size.to_bytes(4, "big") + bytes(5) + flags.to_bytes(4, "big")
