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
import pytest

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
        self.transport.write(self.h2.data_to_send())


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


async def outcome(connection: GrpcConnection, request: bytes = b"x") -> object:
    """Return the answer, or the error."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    answers: list[bytes] = []

    def ended(error: Exception | None) -> None:
        done.set_result(error or b"".join(answers))

    secret = [("token", "s3cret")]
    call = Call("/a.B/C", secret, answers.append, ended)
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


async def test_many_calls_at_once() -> None:
    async with connected(echo) as connection:
        answers = await asyncio.gather(
            *(outcome(connection, bytes(n)) for n in range(300))
        )
    assert answers == [n.to_bytes(4, "big") for n in range(300)]


async def test_an_error_of_the_server() -> None:
    def refuse(peer: Peer, number: int, request: bytes) -> None:
        del request
        told = [*HEAD, ("grpc-status", "8"), ("grpc-message", "too%20many")]
        peer.h2.send_headers(number, told, end_stream=True)

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
