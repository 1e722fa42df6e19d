"""Reading and writing the fields that messages are made of."""

from __future__ import annotations

# In front of a value: its length, or that there is none, or that it comes in pieces.
_NULL = (0, 255)
_PIECES = 254
_LONGEST = 252
_PIECE = 32767


class NeedMore(Exception):
    """The message goes on in a packet that has not come yet."""


class Reader:
    """Takes fields from the front of what has been received."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise NeedMore
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def skip(self, size: int) -> None:
        self.take(size)

    def startswith(self, prefix: bytes) -> bool:
        return self.data.startswith(prefix, self.at)

    def byte(self) -> int:
        return self.take(1)[0]

    def two(self) -> int:
        """Two bytes, the higher first."""
        return int.from_bytes(self.take(2), "big")

    def number(self) -> int:
        """One of 0 to 8 bytes, whose count comes first; its top bit is the sign."""
        size = self.byte()
        value = int.from_bytes(self.take(size & 0x7F), "big")
        return -value if size & 0x80 else value

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def value(self) -> bytes | None:
        """Bytes with their length in front; nothing for NULL."""
        size = self.byte()
        if size in _NULL:
            return None
        if size != _PIECES:
            return self.take(size)
        pieces: list[bytes] = []
        while piece := self.number():
            pieces.append(self.take(piece))
        return b"".join(pieces)

    def sized(self) -> bytes | None:
        """A value whose length is sent twice."""
        return self.value() if self.number() else None

    def text(self) -> str:
        return (self.sized() or b"").decode()

    def zeros(self) -> bytes:
        """What comes before a zero byte."""
        out = bytearray()
        while byte := self.byte():
            out.append(byte)
        return bytes(out)


class Writer:
    """Fields one after the other; every method gives the writer back."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, data: bytes) -> Writer:
        self.data += data
        return self

    def octets(self, *values: int) -> Writer:
        self.data += bytes(values)
        return self

    def numbers(self, *values: int) -> Writer:
        for value in values:
            self._number(value)
        return self

    def _number(self, value: int) -> None:
        size = (abs(value).bit_length() + 7) // 8
        if size > 2:
            size = 4 if size <= 4 else 8
        self.data.append(size | (0x80 if value < 0 else 0))
        self.data += abs(value).to_bytes(size, "big")

    def value(self, value: bytes | None) -> Writer:
        if not value:
            self.data.append(0)
        elif len(value) <= _LONGEST:
            self.data.append(len(value))
            self.data += value
        else:
            self.data.append(_PIECES)
            for at in range(0, len(value), _PIECE):
                piece = value[at : at + _PIECE]
                self._number(len(piece))
                self.data += piece
            self._number(0)
        return self

    def text(self, text: str) -> Writer:
        """A text whose length is sent twice."""
        data = text.encode()
        self._number(len(data))
        return self.value(data) if data else self

    def done(self) -> bytes:
        return bytes(self.data)
