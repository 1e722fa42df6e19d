"""A connection of cassandra-driver whose socket a ``SocketReader`` reads.

Segments of the native protocol, version 5, their headers worked out only once.

A header has a check sum of its own, which the driver works out bit by bit, in Python: a
twentieth of what a small request costs it. But the header of a segment that is not
compressed says how long it is and nothing else, and ours are of few lengths.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from socket import IPPROTO_TCP, SHUT_RDWR, TCP_NODELAY
from typing import Any, ClassVar

from aiorwlock_remote.backends.cassandra.driver import (
    Connection,
    ConnectionShutdown,
    SegmentCodec,
    SegmentHeader,
)
from aiorwlock_remote.backends.cassandra.socket_reader import (
    TURN_GRACE,
    SocketReader,
    Timer,
)

MAX_HEADERS_CACHED = 1024
"""How many are remembered."""


class CachingSegmentCodec(SegmentCodec):
    """As the driver's, uncompressed. For all connections and threads."""

    def encode_header(
        self,
        buffer: BytesIO,
        payload_length: int,
        uncompressed_length: int,
        is_self_contained: bool,  # noqa: FBT001 - the driver's
    ) -> None:
        """Write it."""
        buffer.write(
            _encoded_header(payload_length, uncompressed_length, is_self_contained)
        )

    def decode_header(self, buffer: BytesIO) -> SegmentHeader:
        """Read it; the driver's error if it is damaged."""
        return _decoded_header(buffer.read(self.header_length_with_crc))


_plain_codec: SegmentCodec = SegmentCodec()
CACHED_SEGMENTS: CachingSegmentCodec = CachingSegmentCodec()


@lru_cache(MAX_HEADERS_CACHED)
def _encoded_header(length: int, uncompressed: int, contained: bool) -> bytes:  # noqa: FBT001
    buffer = BytesIO()
    _plain_codec.encode_header(buffer, length, uncompressed, contained)
    return buffer.getvalue()


@lru_cache(MAX_HEADERS_CACHED)
def _decoded_header(header: bytes) -> SegmentHeader:
    return _plain_codec.decode_header(BytesIO(header))


READ_BUFFER_BYTES = 1 << 16
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connection_class(reader: SocketReader) -> type[ReadConnection]:
    """The ``connection_class`` of a cluster object."""
    return type("ReadConnection", (ReadConnection,), {"reader": reader})


class ReadConnection(Connection):
    """One socket: written to by whoever asks, read by the loop or its aide.

    What is written leaves at once. Only a read *behind* a transaction, which is to be
    carried out after it, is left to Nagle's algorithm: the system sends it when what
    was sent before has been acknowledged, which the answer does, and sooner than we
    would when we have read that. Whatever else is asked meanwhile takes it along.

    What the driver calls is named as the driver wants it; see its own reactors.
    """

    reader: ClassVar[SocketReader]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the driver's
        """Connect and greet the server. Blocks: the driver does it in threads."""
        super().__init__(*args, **kwargs)
        self._strangers: set[int] = set()
        """Requests of others than the loop; those that are over stay a while."""
        self._unsent = bytearray()
        self._gathering = False
        self._behind = self._at_once = False
        self._broken: OSError | None = None
        # A socket under TLS must not be read and written to at the same time.
        self._io = threading.Lock()
        self._reading = threading.Lock()
        self._connect_socket()
        self._socket.settimeout(0.0)
        self._leave(at_once=True)
        self.reader.join(self, self._socket)
        self._send_options_message()

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> Timer:
        """Call it in so many seconds, in another thread than the loop's."""
        return cls.reader.later(timeout, callback)

    def send_msg(
        self,
        msg: Any,  # noqa: ANN401 - the driver's
        request_id: int,
        cb: Callable[[Any], object],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> int:
        """As the driver's; whether it is the loop that asks is noted."""
        size = super().send_msg(msg, request_id, cb, *args, **kwargs)
        if not self.reader.in_loop:
            self._strangers.add(request_id)  # answered already, perhaps: see stuck
            self.reader.expect()
        return size

    def push(self, data: bytes) -> None:
        """Send it at once; what else the loop asks in the same turn leaves together."""
        in_loop = self.reader.in_loop
        self._behind = in_loop and self.reader.behind and not self._unsent
        if in_loop and self._gathering:
            if not self._unsent:
                self.reader.expect(TURN_GRACE)
            with self._io:
                self._unsent += data
            return
        self._send(data)
        if in_loop:
            self._gathering = True
            self.reader.at_end(self._gathered)

    def _enable_checksumming(self) -> None:
        super()._enable_checksumming()
        self._segment_codec = CACHED_SEGMENTS

    def _gathered(self) -> None:
        self._gathering = False
        if self._unsent:
            self._send(b"")

    def _send(self, data: bytes) -> None:
        """What has gathered, and this; the aide sends what the socket does not take."""
        with self._io:
            if self._at_once == self._behind:  # as it was for what was sent before
                self._leave(at_once=not self._behind)
            self._unsent += data
            del self._unsent[: self._sent()]
            stuck = self._unsent or self._broken
        if stuck:
            self.reader.expect()

    def read(self) -> None:
        """Take what has arrived, and answer those who wait for it."""
        if not self._reading.acquire(blocking=False):
            return  # somebody is at it
        try:
            if self._unsent:
                self._send(b"")
            while (data := self._received()) is not None:
                if not data:
                    self.close()
                    break
                self._iobuf.write(data)
                self.process_io_buffer()
                if len(data) < READ_BUFFER_BYTES and self.ssl_context is None:
                    break  # under TLS more may have been decrypted
        except Exception as exc:  # noqa: BLE001 - the driver tells all who wait
            self.defunct(exc)
        finally:
            self._reading.release()

    def stuck(self) -> bool:
        """Whether others than the loop wait, or something could not be sent."""
        for request_id in tuple(self._strangers):
            if request_id not in self._requests:
                self._strangers.discard(request_id)
        return bool(self._strangers or self._unsent or self._broken)

    def close(self) -> None:
        """As the driver's: whoever waits is told, the server sees the end at once."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        with self._io, suppress(OSError):  # the server may be quicker
            self._socket.shutdown(SHUT_RDWR)
        self.reader.leave(self)
        if not self.is_defunct:
            self.error_all_requests(
                ConnectionShutdown(f"Connection to {self.endpoint} was closed")
            )
            self.connected_event.set()

    def end(self) -> None:
        """The loop has turned away."""
        with self._io:
            self._socket.close()

    def _leave(self, *, at_once: bool) -> None:
        """What is still kept does so, too."""
        self._at_once = at_once
        with suppress(OSError):  # no TCP, or closed
            self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, at_once)

    def _sent(self) -> int:
        """How much of it the socket took."""
        if not self._unsent or self.is_closed or self._broken is not None:
            return len(self._unsent)  # who asked is told that the connection is over
        try:
            return self._socket.send(self._unsent)
        except _WOULD_BLOCK:
            return 0
        except OSError as exc:
            self._broken = exc
            return len(self._unsent)

    def _received(self) -> bytes | None:
        """What has arrived; empty: the server has closed it. None: nothing yet."""
        with self._io:
            if self._broken is not None:
                raise self._broken
            if self.is_closed:
                return None
            try:
                return self._socket.recv(READ_BUFFER_BYTES)
            except _WOULD_BLOCK:
                return None
