"""One HTTP/2 connection that carries gRPC calls, in an asyncio loop.

Over ``h2``, which does no I/O. Frames of our own took 0.4 ms for two calls in place of
1.0, and were given up: HTTP/2 is not what this project is for, and ``h2`` is kept by
others. The package ``grpcio`` was not taken: its asyncio
channels are bound to one loop of a process, and this library renews leases in a second;
and a process that has used it cannot fork and go on. What both cost is in
``docs/stores/etcd.md``.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

# Bytes that the server may send before we acknowledge any: more than one answer has.
RECEIVE_WINDOW = 1 << 26
REFUSED_STREAM = int(h2.errors.ErrorCodes.REFUSED_STREAM)
MAX_BLOCKS = 64
WRITE_DELAY = 0.005
"""Seconds for which what answers a frame of the server waits for a call to go with."""
CANCEL = h2.errors.ErrorCodes.CANCEL
_HEAD = struct.Struct(">?I")

Headers = list[tuple[str, str]]


class Disconnected(Exception):
    """The connection is gone.

    ``unsent``: the server certainly has not begun to carry out the call.
    """

    def __init__(self, why: str, *, unsent: bool) -> None:
        super().__init__(why)
        self.unsent: bool = unsent


class GrpcError(Exception):
    """The server has answered with an error: gRPC's status code and its message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: int = code
        self.text: str = text


@dataclass(slots=True, eq=False)
class Call:
    """One call: a stream of HTTP/2.

    ``on_message`` is called with each message of the server, ``on_end`` at the end with
    the error, or None if the server has ended the call in order.
    """

    path: str
    metadata: Headers
    on_message: Callable[[bytes], object]
    on_end: Callable[[Exception | None], object]
    stream_id: int = 0  # 0: not sent yet
    unsent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    half_closed: bool = False  # we send no more messages
    status: int | None = None
    text: str = ""


class PlainEncoder:
    """HPACK without a table and without Huffman codes: a call's headers are constant.

    ``hpack``'s own encoder takes a tenth of a millisecond a call, and logs each header
    at DEBUG, the token of the login too.
    """

    header_table_size: int = 0  # set by ``h2``, and not used

    def __init__(self) -> None:
        self._blocks: dict[tuple[tuple[str | bytes, ...], ...], bytes] = {}

    def encode(self, headers: Sequence[tuple[str | bytes, ...]]) -> bytes:
        """Return the header block."""
        known = tuple(headers)
        block = self._blocks.get(known)
        if block is None:
            if len(self._blocks) >= MAX_BLOCKS:  # each login has its token
                self._blocks.clear()
            block = b"".join(
                b"\x10" + _literal(name) + _literal(text) for name, text in known
            )
            self._blocks[known] = block
        return block


def _literal(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text  # h2 before 4.2 passes str
    size, head = len(data), bytearray()
    if size < 0x7F:
        head.append(size)
    else:  # an integer with a prefix of seven bits
        head.append(0x7F)
        size -= 0x7F
        while size >= 0x80:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        head.append(size)
    return bytes(head) + data


class GrpcConnection(asyncio.Protocol):
    """Client side of an HTTP/2 connection. For use in its event loop alone.

    A call is written at once, and fails with ``Disconnected`` if the connection ends.
    ``greeted`` is done when the server has shown that it speaks HTTP/2: a process that
    is stopped still takes connections.
    """

    def __init__(self, authority: str, *, tls: bool) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        # No task may wait for it any more when the connection is refused.
        self.greeted.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )
        self.closed: bool = False
        self._head: Headers = [
            (":method", "POST"),
            (":scheme", "https" if tls else "http"),
            (":authority", authority),
        ]
        self._tail: Headers = [("te", "trailers"), ("content-type", "application/grpc")]
        self._tls = tls
        self._calls: dict[int, Call] = {}
        self._waiting: deque[Call] = deque()
        self._unsent: dict[int, Call] = {}  # of those, what has bytes to send
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            # The peer is a server of the user's; what it costs is a third of a call.
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = h2.connection.H2Connection(config)
        encoder: Any = PlainEncoder()
        self._h2.encoder = encoder

    # ------------------------------------------------------------------------ calls

    async def call(
        self, path: str, request: bytes, metadata: Headers, seconds: float
    ) -> bytes:
        """Send a request, and return the message of its answer.

        Up to its only ``await`` it may run outside of a task.

        Raises:
            TimeoutError: No answer has come for ``seconds``.
            Disconnected: The connection is lost.
            GrpcError: The server's.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()
        answers: list[bytes] = []

        def end(error: Exception | None) -> None:
            if answered.done():
                return
            if error is None and not answers:
                error = Disconnected("an answer without a message", unsent=False)
            if error is None:
                answered.set_result(answers[0])
            else:
                answered.set_exception(error)

        call = Call(path, metadata, answers.append, end)
        self.begin(call, request, last=True)
        timer = loop.call_later(seconds, end, TimeoutError())
        try:
            return await answered
        except (asyncio.CancelledError, TimeoutError):
            self.cancel(call)
            raise
        finally:
            timer.cancel()

    def begin(self, call: Call, *messages: bytes, last: bool) -> None:
        """Send a call and its first messages; ``last``: no more messages follow."""
        if self.closed:
            call.on_end(Disconnected("the connection is closed", unsent=True))
            return
        for each in messages:
            call.unsent += _HEAD.pack(False, len(each)) + each  # noqa: FBT003 - bytes
        call.half_closed = last
        self._waiting.append(call)
        self._send()

    def send(self, call: Call, message: bytes) -> None:
        """Send one more message of a call that has begun."""
        call.unsent += _HEAD.pack(False, len(message)) + message  # noqa: FBT003
        if call.stream_id in self._calls:
            self._unsent[call.stream_id] = call
        self._send()

    def cancel(self, call: Call) -> None:
        """Tell the server that the answer is not awaited; ``on_end`` is not called."""
        if self._ended(call.stream_id) is not None:
            with suppress(h2.exceptions.H2Error):
                self._h2.reset_stream(call.stream_id, CANCEL)
                self._write()
        elif call in self._waiting:
            self._waiting.remove(call)

    def abort(self, why: str = "closed") -> None:
        """Close the connection at once; all calls fail."""
        if not self.closed:
            self._lost(why)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - asyncio's
        self._transport = transport
        if self._tls:
            chosen: ssl.SSLObject = transport.get_extra_info("ssl_object")
            if chosen.selected_alpn_protocol() != "h2":
                self.abort("the server does not speak HTTP/2")
                return
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: RECEIVE_WINDOW,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(RECEIVE_WINDOW)
        self._write()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
            for event in events:
                self._take(event)
            if self._waiting or self._unsent:
                self._send()  # what had to wait for a window
            elif self._timer is None and not self.closed:
                # Beside each answer comes a ping: the server measures the bandwidth. A
                # packet of its own would cost a third of a call.
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(WRITE_DELAY, self._write_late)
        except (h2.exceptions.H2Error, ValueError) as exc:
            self.abort(f"not gRPC: {type(exc).__name__}: {exc}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self._lost(str(exc or "the server has closed the connection"))

    # ----------------------------------------------------------------------- inside

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RemoteSettingsChanged():
                if not self.greeted.done():
                    self.greeted.set_result(None)
            case h2.events.DataReceived():
                self._h2.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.received += event.data
                    _deliver(call)
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                call = self._calls.get(event.stream_id)
                if call is not None:
                    _note_status(call, event.headers)
            case h2.events.StreamEnded():
                call = self._ended(event.stream_id)
                if call is not None:
                    call.on_end(_outcome(call))
            case h2.events.StreamReset():
                call = self._ended(event.stream_id)
                if call is not None:
                    unsent = event.error_code == REFUSED_STREAM
                    call.on_end(Disconnected("the call was reset", unsent=unsent))
            case h2.events.ConnectionTerminated():
                # Calls that the server has begun may be answered still; ``h2`` reads no
                # more, so that they count as lost.
                why = (event.additional_data or b"").decode(errors="replace")
                self._lost(f"the server goes away {why}".strip(), event.last_stream_id)
                self.abort()
            case _:
                pass

    def _send(self) -> None:
        """Write what the windows of the server allow."""
        if self.closed or self._transport is None:
            return
        try:
            self._start_waiting()
            for call in list(self._unsent.values()):
                # Each new call comes here, however many wait for the server to take
                # more (test_calls_that_wait_for_a_window_are_not_looked_at_by_each_new
                # _one).
                if self._h2.outbound_flow_control_window <= 0:
                    break
                self._send_data(call)
            self._write()
        except h2.exceptions.H2Error as exc:
            self.abort(f"{type(exc).__name__}: {exc}")

    def _start_waiting(self) -> None:
        limit = self._h2.remote_settings.max_concurrent_streams
        while self._waiting and len(self._calls) < limit:
            call = self._waiting.popleft()
            call.stream_id = self._h2.get_next_available_stream_id()
            self._calls[call.stream_id] = self._unsent[call.stream_id] = call
            path = (":path", call.path)
            headers = [*self._head, path, *self._tail, *call.metadata]
            self._h2.send_headers(call.stream_id, headers)

    def _send_data(self, call: Call) -> None:
        stream_id = call.stream_id
        while call.unsent:
            window = self._h2.local_flow_control_window(stream_id)
            size = min(window, self._h2.max_outbound_frame_size, len(call.unsent))
            if size <= 0:
                return
            part = bytes(call.unsent[:size])
            del call.unsent[:size]
            end = call.half_closed and not call.unsent
            self._h2.send_data(stream_id, part, end_stream=end)
        del self._unsent[stream_id]

    def _ended(self, stream_id: int | None) -> Call | None:
        """Return the call of a stream, and forget it; None: it is forgotten already."""
        self._unsent.pop(stream_id or 0, None)
        return self._calls.pop(stream_id or 0, None)

    def _write_late(self) -> None:
        self._timer = None
        self._write()

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _lost(self, why: str, last_stream_id: int | None = None) -> None:
        self.closed = True
        if not self.greeted.done():
            self.greeted.set_exception(Disconnected(why, unsent=True))
        calls, self._calls, self._unsent = self._calls, {}, {}
        waiting, self._waiting = self._waiting, deque[Call]()
        for call in calls.values():
            unsent = last_stream_id is not None and call.stream_id > last_stream_id
            call.on_end(Disconnected(why, unsent=unsent))
        for call in waiting:
            call.on_end(Disconnected(why, unsent=True))


class Stream:
    """A call with many messages both ways, which begins now."""

    def __init__(self, connection: GrpcConnection, call: Call) -> None:
        self._connection = connection
        self._call = call
        connection.begin(call, last=False)

    def send(self, message: bytes) -> None:
        self._connection.send(self._call, message)

    def cancel(self) -> None:
        """End the call; ``on_end`` is not called."""
        self._connection.cancel(self._call)


def _deliver(call: Call) -> None:
    """Hand over each whole message of those that were received."""
    while len(call.received) >= _HEAD.size:
        packed, size = _HEAD.unpack_from(call.received)
        if packed:
            raise ValueError("a compressed message")
        end = _HEAD.size + size
        if len(call.received) < end:
            return
        message = bytes(call.received[_HEAD.size : end])
        del call.received[:end]
        call.on_message(message)


def _note_status(call: Call, headers: Any) -> None:  # noqa: ANN401 - pairs of texts
    found = dict(headers)
    if "grpc-status" in found:
        call.status = int(found["grpc-status"])
        call.text = unquote(found.get("grpc-message", ""))
    elif found.get(":status", "200") != "200":
        call.status, call.text = -1, f"HTTP status {found[':status']}"


def _outcome(call: Call) -> Exception | None:
    if call.status == 0:
        return None
    if call.status is None or call.status < 0:
        return Disconnected(call.text or "no status", unsent=False)
    return GrpcError(call.status, call.text)
