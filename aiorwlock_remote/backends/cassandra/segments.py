"""Segments of the native protocol, version 5, their headers worked out only once.

A header has a check sum of its own, which the driver works out bit by bit, in Python: a
twentieth of what a small request costs it. But the header of a segment that is not
compressed says how long it is and nothing else, and ours are of few lengths.
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO

from aiorwlock_remote.backends.cassandra.driver import SegmentCodec, SegmentHeader

CACHE_SIZE = 1024
"""How many are remembered."""


class Segments(SegmentCodec):
    """As the driver's, uncompressed. For all connections and threads."""

    def encode_header(
        self,
        buffer: BytesIO,
        payload_length: int,
        uncompressed_length: int,
        is_self_contained: bool,  # noqa: FBT001 - the driver's
    ) -> None:
        """Write it."""
        buffer.write(_encoded(payload_length, uncompressed_length, is_self_contained))

    def decode_header(self, buffer: BytesIO) -> SegmentHeader:
        """Read it; the driver's error if it is damaged."""
        return _decoded(buffer.read(self.header_length_with_crc))


_drivers: SegmentCodec = SegmentCodec()
SEGMENTS: Segments = Segments()


@lru_cache(CACHE_SIZE)
def _encoded(length: int, uncompressed: int, contained: bool) -> bytes:  # noqa: FBT001
    buffer = BytesIO()
    _drivers.encode_header(buffer, length, uncompressed, contained)
    return buffer.getvalue()


@lru_cache(CACHE_SIZE)
def _decoded(header: bytes) -> SegmentHeader:
    return _drivers.decode_header(BytesIO(header))
