"""What a connection says of calls that fail, at a server that fails on demand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote.backends.etcd import grpc_connection
from aiorwlock_remote.backends.etcd.grpc_connection import (
    Call,
    Disconnected,
    GrpcConnection,
    GrpcError,
)
from tests.servers.process import IP

pytestmark = pytest.mark.asyncio

Answer = Callable[["Peer", int, bytes], None]
OK = [("grpc-status", "0")]
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


class Peer(asyncio.Protocol):
    """Server side; ``answer(peer, stream_id, request)`` is called for each request."""

    def __init__(self, answer: Answer) -> None:
        config = h2.config.H2Configuration(client_side=False)
        self.h2: Any = h2.connection.H2Connection(config)
        self._answer = answer
        self._requests: dict[int, bytes] = {}
        self.heads: list[Any] = []
        self.acknowledged: list[bytes] = []
        self.unsent: dict[int, bytes] = {}
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.h2.initiate_connection()
        transport.write(self.h2.data_to_send())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                before = self._requests.get(event.stream_id or 0, b"")
                self._requests[event.stream_id or 0] = before + (event.data or b"")
                size = event.flow_controlled_length
                self.h2.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                number = event.stream_id or 0
                self._answer(self, number, self._requests.pop(number)[5:])
            elif isinstance(event, h2.events.RequestReceived):
                self.heads.append(event.headers)
            elif isinstance(event, h2.events.PingAckReceived):
                self.acknowledged.append(event.ping_data or b"")
            elif isinstance(event, h2.events.WindowUpdated):
                self.send_unsent()
        self.transport.write(self.h2.data_to_send())

    def send_unsent(self) -> None:
        """Send the rest of long answers, as far as the client's windows allow."""
        for number, rest in list(self.unsent.items()):
            while self.unsent[number]:
                window = self.h2.local_flow_control_window(number)
                size = min(window, 16384, len(self.unsent[number]))
                if size <= 0:
                    break
                self.h2.send_data(number, self.unsent[number][:size])
                self.unsent[number] = self.unsent[number][size:]
            if rest and not self.unsent[number]:
                self.h2.send_headers(number, OK, end_stream=True)


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[GrpcConnection]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Peer(answer), IP, 0)
    port = server.sockets[0].getsockname()[1]
    _, connection = await loop.create_connection(
        lambda: GrpcConnection(f"{IP}:{port}", tls=False), IP, port
    )
    await connection.greeted
    try:
        yield connection
    finally:
        connection.abort()
        server.close()
        await asyncio.sleep(0.01)


async def outcome(
    connection: GrpcConnection,
    request: bytes = b"x",
    metadata: list[tuple[str, str]] | None = None,
) -> object:
    """Return the answer, or the error."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    answers: list[bytes] = []

    def ended(error: Exception | None) -> None:
        done.set_result(error or b"".join(answers))

    secret = [("token", "s3cret")]
    call = Call("/a.B/C", metadata or secret, answers.append, ended)
    connection.begin(call, request, last=True)
    return await done


def echo(peer: Peer, number: int, request: bytes) -> None:
    peer.h2.send_headers(number, HEAD)
    size = len(request).to_bytes(4, "big")
    peer.h2.send_data(number, b"\0\0\0\0\4" + size)
    peer.h2.send_headers(number, OK, end_stream=True)


async def test_a_message_longer_than_the_window() -> None:
    """It goes in parts, as the server takes them."""
    async with connected(echo) as connection:
        size = 300_000
        assert await outcome(connection, bytes(size)) == size.to_bytes(4, "big")


async def test_an_answer_longer_than_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server may send more when half of a window has come, of either kind."""
    monkeypatch.setattr(grpc_connection, "RECEIVE_WINDOW", 100_000)

    def long(peer: Peer, number: int, request: bytes) -> None:
        peer.h2.send_headers(number, HEAD)
        size = len(request).to_bytes(4, "big")
        peer.unsent[number] = b"\0" + size + request
        peer.send_unsent()

    async with connected(long) as connection:
        request = bytes(range(256)) * 4000
        assert await outcome(connection, request) == request


async def test_headers_in_parts() -> None:
    """Of both sides, longer than a frame."""
    heads: list[Any] = []

    def refuse(peer: Peer, number: int, request: bytes) -> None:
        del request
        heads.extend(peer.heads)
        headers = [*HEAD, ("grpc-status", "8"), ("grpc-message", "x" * 40_000)]
        peer.h2.send_headers(number, headers, end_stream=True)

    async with connected(refuse) as connection:
        error = await outcome(connection, metadata=[("token", "y" * 40_000)])
    assert isinstance(error, GrpcError)
    assert error.text == "x" * 40_000
    assert (b"token", b"y" * 40_000) in [tuple(pair) for pair in heads[0]]


async def test_padding_is_cut_off() -> None:
    def padded(peer: Peer, number: int, request: bytes) -> None:
        peer.h2.send_headers(number, HEAD)
        answer = b"\0" + len(request).to_bytes(4, "big") + request
        peer.h2.send_data(number, answer, pad_length=9)
        peer.h2.send_headers(number, OK, end_stream=True)

    async with connected(padded) as connection:
        assert await outcome(connection, b"abc") == b"abc"


async def test_pings_are_answered() -> None:
    """With the next call; and soon, if there is none."""
    peers: list[Peer] = []

    def ping(peer: Peer, number: int, request: bytes) -> None:
        peers.append(peer)
        peer.h2.ping(request)
        echo(peer, number, request)

    async with connected(ping) as connection:
        for request in (b"12345678", b"abcdefgh"):
            await outcome(connection, request)
        async with asyncio.timeout(10):
            while len(peers[0].acknowledged) < 2:  # noqa: ASYNC110 - as it says
                await asyncio.sleep(0.001)
    assert peers[0].acknowledged == [b"12345678", b"abcdefgh"]


async def test_a_server_that_takes_less() -> None:
    """Of calls at a time, and of bytes, from one moment on."""
    peers: list[Peer] = []

    def take_less(peer: Peer, number: int, request: bytes) -> None:
        peers.append(peer)
        if len(peers) == 1:
            codes = h2.settings.SettingCodes
            less = {codes.MAX_CONCURRENT_STREAMS: 1, codes.INITIAL_WINDOW_SIZE: 1000}
            peer.h2.update_settings(less)
        echo(peer, number, request)

    async with connected(take_less) as connection:
        await outcome(connection)
        answers = await asyncio.gather(
            *(outcome(connection, bytes(5000 + n)) for n in range(20))
        )
    assert answers == [(5000 + n).to_bytes(4, "big") for n in range(20)]


async def test_no_answer_in_time() -> None:
    """The call is given up, the connection is not."""

    def silent(peer: Peer, number: int, request: bytes) -> None:
        if request != b"silent":
            echo(peer, number, request)

    async with connected(silent) as connection:
        with pytest.raises(TimeoutError):
            await connection.call("/a.B/C", b"silent", [], 0.05)
        assert await connection.call("/a.B/C", b"abc", [], 20) == (3).to_bytes(4, "big")


class NoTransport:
    """What a connection writes to, and closes."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool:
        return False


FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda kind, flags, number, content: (
                len(content).to_bytes(3, "big")
                + bytes([kind, flags])
                + number.to_bytes(4, "big")
                + content
            ),
            st.integers(0, 11),
            st.integers(0, 255),
            st.sampled_from([0, 1, 3, 2**31]),
            st.binary(max_size=40),
        ),
    )
)


@given(FRAMES, st.booleans())
async def test_any_bytes_end_a_call_or_let_it_wait(
    frames: list[bytes], greets: bool
) -> None:
    """Whatever a server sends: no other exception, no call that ends twice."""
    connection = GrpcConnection("host", tls=False)
    connection.connection_made(NoTransport())
    ended: list[Exception | None] = []
    call = Call("/a.B/C", [], lambda _: None, ended.append)
    if greets:
        connection.data_received(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    connection.begin(call, b"x", last=True)
    for frame in frames:
        connection.data_received(frame)
    connection.abort()
    assert len(ended) == 1


async def test_many_calls_at_once() -> None:
    async with connected(echo) as connection:
        answers = await asyncio.gather(
            *(outcome(connection, bytes(n)) for n in range(300))
        )
    assert answers == [n.to_bytes(4, "big") for n in range(300)]


async def test_calls_that_wait_for_a_window_are_not_looked_at_by_each_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand begin before the server has taken any byte of the first."""
    looked: list[int] = []
    window = h2.connection.H2Connection.local_flow_control_window

    def counted(connection: Any, number: int) -> int:  # noqa: ANN401 - either side's
        if connection.config.client_side:
            looked.append(number)
        return window(connection, number)

    monkeypatch.setattr(
        h2.connection.H2Connection, "local_flow_control_window", counted
    )
    async with connected(echo) as connection:
        calls = [outcome(connection, bytes(1000)) for _ in range(1000)]
        answers = await asyncio.gather(*calls)
    assert answers == [(1000).to_bytes(4, "big")] * 1000
    assert len(looked) < 10_000


async def test_an_error_of_the_server() -> None:
    def refuse(peer: Peer, number: int, request: bytes) -> None:
        del request
        headers = [*HEAD, ("grpc-status", "8"), ("grpc-message", "too%20many")]
        peer.h2.send_headers(number, headers, end_stream=True)

    async with connected(refuse) as connection:
        error = await outcome(connection)
    assert isinstance(error, GrpcError)
    assert (error.code, error.text) == (8, "too many")


@pytest.mark.parametrize(
    ("code", "unsent"),
    [
        (h2.errors.ErrorCodes.REFUSED_STREAM, True),
        (h2.errors.ErrorCodes.INTERNAL_ERROR, False),
    ],
)
async def test_a_call_that_is_reset(code: int, *, unsent: bool) -> None:
    def reset(peer: Peer, number: int, request: bytes) -> None:
        del request
        peer.h2.reset_stream(number, code)

    async with connected(reset) as connection:
        error = await outcome(connection)
        assert isinstance(error, Disconnected)
        assert error.unsent is unsent
        assert not connection.closed


@pytest.mark.parametrize(("last", "unsent"), [(0, True), (1, False)])
async def test_a_server_that_goes_away(last: int, *, unsent: bool) -> None:
    """Calls behind the last that it has begun were certainly not carried out."""

    def leave(peer: Peer, number: int, request: bytes) -> None:
        del number, request
        peer.h2.close_connection(last_stream_id=last)

    async with connected(leave) as connection:
        error = await outcome(connection)
        assert isinstance(error, Disconnected)
        assert error.unsent is unsent
        later = await outcome(connection)
        assert isinstance(later, Disconnected)
        assert later.unsent


async def test_a_connection_that_is_cut() -> None:
    def cut(peer: Peer, number: int, request: bytes) -> None:
        del number, request
        peer.transport.abort()

    async with connected(cut) as connection:
        error = await outcome(connection)
    assert isinstance(error, Disconnected)
    assert not error.unsent


async def test_a_server_of_another_kind() -> None:
    """What is no HTTP/2 ends the connection, and hangs nobody."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, IP, 0)
    port = server.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: GrpcConnection(f"{IP}:{port}", tls=False), IP, port
    )
    with pytest.raises(Disconnected):
        await connection.greeted
    connection.abort()
    server.close()
    await asyncio.sleep(0.01)


async def test_a_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Not by ``hpack``, which logs each header that it encodes."""
    caplog.set_level(logging.DEBUG, logger="hpack")
    async with connected(echo) as connection:
        assert await outcome(connection) == (1).to_bytes(4, "big")
    assert "grpc-status" in caplog.text  # the answer's are logged
    client = [
        record
        for record in caplog.records
        if record.name.startswith("hpack") and "Adding" in record.getMessage()
    ]
    assert not any("s3cret" in record.getMessage() for record in client)
