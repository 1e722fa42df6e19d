"""A connection of cassandra-driver whose socket a ``SocketReader`` reads."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from socket import IPPROTO_TCP, SHUT_RDWR, TCP_NODELAY
from typing import Any, ClassVar

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote.backends.cassandra.driver import (
    Connection,
    ConnectionShutdown,
    SegmentCodec,
    SegmentHeader,
)
from aiorwlock_remote.backends.cassandra.driver_parts import codec_fits
from aiorwlock_remote.backends.cassandra.socket_reader import (
    TURN_GRACE,
    SocketReader,
    Timer,
)
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

READ_BUFFER_BYTES = 1 << 16
MAX_HEADERS_CACHED = 1024
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connection_class(reader: SocketReader) -> type[ReadConnection]:
    """Return a connection class for a driver Cluster; ``reader`` reads its sockets."""
    return type("ReadConnection", (ReadConnection,), {"reader": reader})


class ReadConnection(Connection):
    """Connection of the driver whose socket is read by a ``SocketReader``.

    Each thread writes its own requests to the socket, and the kernel sends them at
    once. Exception: a read that must be carried out after the transaction sent before
    it (``Request.behind``) is held back by the kernel (Nagle's algorithm) until the
    transaction's answer arrives: sooner than we could send it ourselves. A later write
    sends it at once.

    Methods that the driver calls have the driver's names; see the driver's own
    reactors. ``driver_parts.py`` checks that the driver still has what this class uses.

    Invariants, with the test that fails without each (test_connection.py):

    * Bytes leave in the order of ``push``
      (test_only_what_has_time_waits_for_the_answer_of_what_was_asked_before).
    * Bytes that the socket does not take, or that a blocked event loop has gathered,
      are sent by the helper thread of ``SocketReader``
      (test_bytes_that_the_socket_refuses_are_sent_by_the_helper,
      test_a_turn_that_does_not_end_keeps_nothing_back).
    * When the connection ends, each request gets an error
      (test_each_request_fails_when_the_server_hangs_up).
    """

    reader: ClassVar[SocketReader]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the driver's
        super().__init__(*args, **kwargs)
        # Requests of other threads than the loop's; `needs_help` removes answered ones.
        self._of_other_threads: set[int] = set()
        self._unsent = bytearray()
        self._gathering = False
        self._behind = self._at_once = False
        self._broken: OSError | None = None
        # A socket under TLS must not be read and written to at the same time.
        self._io = Lock()
        self._reading = Lock()
        self._connect_socket()
        # Neither the loop nor the helper thread may wait for one socket.
        self._socket.settimeout(0.0)
        self._set_nodelay(at_once=True)
        self.reader.add(self, self._socket)
        self._send_options_message()
        log_event(log, "connection_opened", logging.DEBUG, node=self.endpoint)

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], object]) -> Timer:
        # The helper thread reads the sockets again before it reports a timeout.
        return cls.reader.later(timeout, callback)

    def send_msg(
        self,
        msg: Any,  # noqa: ANN401 - the driver's
        request_id: int,
        cb: Callable[[Any], object],
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> int:
        size = super().send_msg(msg, request_id, cb, *args, **kwargs)
        if not self.reader.in_loop:
            # After sending, so it may have been answered already: see `needs_help`.
            self._of_other_threads.add(request_id)
            self.reader.expect()
        return size

    def push(self, data: bytes) -> None:
        """Send an encoded request; the driver calls this in the requesting thread.

        In the event loop's thread the first request of a turn of the loop is sent at
        once, the others together when the turn ends. Other threads send at once.
        """
        in_loop = self.reader.in_loop
        self._behind = in_loop and self.reader.behind and not self._unsent
        if in_loop and self._gathering:
            with self._io:
                first = not self._unsent
                self._unsent += data
            if first:
                # After the data: otherwise the helper thread could look in between,
                # find nothing to send, and a blocked loop would keep the data back.
                self.reader.expect(TURN_GRACE)
            return
        # The first request of a turn does not wait for others; a second one shows that
        # there are several, which then leave in one system call.
        self._send(data)
        if in_loop:
            self._gathering = True
            self.reader.loop.at_end(self._turn_ended)

    def read(self) -> None:
        if not self._reading.acquire(blocking=False):
            return  # another thread is reading, and takes all that has arrived
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
                    break  # under TLS more may have been decrypted already
        except Exception as exc:  # noqa: BLE001 - the driver hands it to all requests
            log_event(
                log, "connection_lost", logging.DEBUG, node=self.endpoint, error=exc
            )
            self.defunct(exc)
        finally:
            self._reading.release()

    def needs_help(self) -> bool:
        # A copy, because other threads add to the set meanwhile.
        for request_id in tuple(self._of_other_threads):
            if request_id not in self._requests:
                self._of_other_threads.discard(request_id)
        return bool(self._of_other_threads or self._unsent or self._broken)

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        # The socket itself is closed when the loop does not watch it any more.
        with self._io, suppress(OSError):  # the server may have closed it before
            self._socket.shutdown(SHUT_RDWR)
        self.reader.remove(self)
        if not self.is_defunct:
            self.error_all_requests(
                ConnectionShutdown(f"Connection to {self.endpoint} was closed")
            )
            self.connected_event.set()
        log_event(log, "connection_closed", logging.DEBUG, node=self.endpoint)

    def close_socket(self) -> None:
        with self._io:
            self._socket.close()

    def _enable_checksumming(self) -> None:
        super()._enable_checksumming()
        if codec_fits(CACHED_SEGMENTS):
            self._segment_codec = CACHED_SEGMENTS

    def _turn_ended(self) -> None:
        self._gathering = False
        if self._unsent:
            self._send(b"")

    def _send(self, data: bytes) -> None:
        with self._io:
            # Before each send: the kernel applies it to what it still keeps, too.
            if self._at_once == self._behind:
                self._set_nodelay(at_once=not self._behind)
            self._unsent += data
            del self._unsent[: self._write()]
            stuck = self._unsent or self._broken
        if stuck:
            self.reader.expect()

    def _set_nodelay(self, *, at_once: bool) -> None:
        self._at_once = at_once
        with suppress(OSError):  # it is not TCP, or closed
            self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, at_once)

    def _write(self) -> int:
        # Returns how many of the unsent bytes need not be sent any more.
        if not self._unsent or self.is_closed or self._broken is not None:
            return len(self._unsent)  # their requests get the connection's error
        try:
            return self._socket.send(self._unsent)
        except _WOULD_BLOCK:
            return 0
        except OSError as exc:
            # The next read gives the connection up: so every request gets the error,
            # not only this one (test_one_that_nothing_can_be_sent_over_is_given_up).
            self._broken = exc
            return len(self._unsent)

    def _received(self) -> bytes | None:
        # Returns b"" if the server closed the connection, None if nothing has arrived.
        with self._io:
            if self._broken is not None:
                raise self._broken
            if self.is_closed:
                return None
            try:
                return self._socket.recv(READ_BUFFER_BYTES)
            except _WOULD_BLOCK:
                return None


class CachingSegmentCodec(SegmentCodec):
    """Segment codec of native protocol 5 that computes each header only once.

    A header has a checksum, which the driver computes bit by bit in Python: a twentieth
    of what a small request costs the driver. But the header of an uncompressed segment
    depends only on the segment's length, and our segments have few lengths. One object
    serves all connections and threads.
    """

    def encode_header(self, buffer: BytesIO, *fields: int) -> None:
        buffer.write(_encoded_header(*fields))

    def decode_header(self, buffer: BytesIO) -> SegmentHeader:
        return _decoded_header(buffer.read(self.header_length_with_crc))


_plain_codec: SegmentCodec = SegmentCodec()
CACHED_SEGMENTS: CachingSegmentCodec = CachingSegmentCodec()


@lru_cache(MAX_HEADERS_CACHED)
def _encoded_header(*fields: int) -> bytes:
    buffer = BytesIO()
    _plain_codec.encode_header(buffer, *fields)
    return buffer.getvalue()


@lru_cache(MAX_HEADERS_CACHED)
def _decoded_header(header: bytes) -> SegmentHeader:
    return _plain_codec.decode_header(BytesIO(header))
