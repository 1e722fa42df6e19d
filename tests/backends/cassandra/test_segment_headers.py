"""Segments whose headers are remembered: to the byte as the driver makes them."""

from __future__ import annotations

from io import BytesIO

import pytest
from cassandra.segment import CrcException, Segment, SegmentCodec
from hypothesis import example, given
from hypothesis import strategies as st

from aiorwlock_remote.backends.cassandra.connection import (
    CACHED_SEGMENTS,
    MAX_HEADERS_CACHED,
    _decoded_header,
)

DRIVERS = SegmentCodec()
MOST = Segment.MAX_PAYLOAD_LENGTH


def encoded(codec: SegmentCodec, message: bytes) -> bytes:
    buffer = BytesIO()
    codec.encode(buffer, message)
    return buffer.getvalue()


@given(st.integers(0, 3 * MOST))
@example(MOST)
@example(MOST + 1)
def test_segments_are_written_as_the_driver_writes_them(size: int) -> None:
    message = bytes(size)
    assert encoded(CACHED_SEGMENTS, message) == encoded(DRIVERS, message)


@given(st.lists(st.integers(0, MOST), max_size=3))
def test_segments_are_read_as_the_driver_writes_them(sizes: list[int]) -> None:
    messages = [bytes([size % 256]) * size for size in sizes]
    buffer = BytesIO(b"".join(encoded(DRIVERS, message) for message in messages))
    for message in messages:
        header = CACHED_SEGMENTS.decode_header(buffer)
        segment = DRIVERS.decode(buffer, header)
        assert (segment.payload, segment.is_self_contained) == (message, True)


def test_a_damaged_header_is_refused_every_time() -> None:
    sent = encoded(DRIVERS, b"message")
    for at in range(CACHED_SEGMENTS.header_length_with_crc):
        damaged = bytes([*sent[:at], sent[at] ^ 1, *sent[at + 1 :]])
        for _ in range(2):
            with pytest.raises(CrcException):
                CACHED_SEGMENTS.decode_header(BytesIO(damaged))


def test_no_more_than_some_are_remembered() -> None:
    for size in range(2 * MAX_HEADERS_CACHED):
        CACHED_SEGMENTS.decode_header(BytesIO(encoded(DRIVERS, bytes(size))))
    assert _decoded_header.cache_info().currsize == MAX_HEADERS_CACHED
