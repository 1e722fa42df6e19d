"""A connection of the driver's that a reader reads, at a server of a few lines."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from socket import (
    IPPROTO_TCP,
    SO_LINGER,
    SOL_SOCKET,
    TCP_NODELAY,
    create_server,
    socket,
)
from typing import cast

import pytest
from cassandra.connection import ConnectionShutdown, DefaultEndPoint
from cassandra.protocol import OptionsMessage

from aiorwlock_remote.backends.cassandra import connection
from aiorwlock_remote.backends.cassandra.connection import (
    CACHED_SEGMENTS,
    ReadConnection,
    connection_class,
)
from aiorwlock_remote.backends.cassandra.socket_reader import SocketReader
from tests.backends.cassandra.fake_loop import FakeLoop

PATIENCE = 60.0
LARGE = 1 << 23
HEADER = 9
"""Bytes of a frame before its body, whose length is the last four."""


@pytest.fixture
def listening() -> Iterator[socket]:
    with create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def near(
    loop: FakeLoop, reader: SocketReader, listening: socket
) -> Iterator[ReadConnection]:
    """The driver's end. It has just greeted the server, and nothing was answered."""
    end = DefaultEndPoint(*listening.getsockname())
    found = connection_class(reader)(end, protocol_version=5, connect_timeout=PATIENCE)
    loop.turn()
    yield found
    found.close()
    loop.turn()


@pytest.fixture
def far(near: ReadConnection, listening: socket) -> Iterator[socket]:
    """The server's end, which has taken the greeting."""
    assert not near.is_closed
    with closing(listening.accept()[0]) as accepted:
        accepted.settimeout(PATIENCE)
        greeting = exactly(accepted, HEADER)
        exactly(accepted, struct.unpack(">I", greeting[-4:])[0])
        yield accepted


def exactly(sock: socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        assert chunk
        data += chunk
    return data


def readable(loop: FakeLoop) -> None:
    for function in list(loop.readers.values()):
        function()


def test_headers_of_segments_are_worked_out_once(near: ReadConnection) -> None:
    near._enable_checksumming()
    assert near._segment_codec is CACHED_SEGMENTS


def test_the_first_is_sent_at_once_and_the_others_of_a_turn_together(
    loop: FakeLoop,
    near: ReadConnection,
    far: socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "TURN_GRACE", 1000.0)
    loop.turn()  # the greeting's
    sent = list[bytes]()

    class Noting:
        def __init__(self, sock: socket) -> None:
            self.shutdown, self.close = sock.shutdown, sock.close
            self.recv, self.fileno = sock.recv, sock.fileno

        def send(self, data: bytearray) -> int:
            sent.append(bytes(data))
            return len(data)

    noted, near._socket = near._socket, cast("socket", Noting(near._socket))
    near.push(b"first")
    assert sent == [b"first"]
    near.push(b"second")
    near.push(b"third")
    loop.turn()
    assert sent == [b"first", b"secondthird"]
    near._socket = noted
    near.push(b"fourth")
    assert exactly(far, 6) == b"fourth"


def leaves_at_once(near: ReadConnection) -> bool:
    return near._socket.getsockopt(IPPROTO_TCP, TCP_NODELAY) != 0


def test_only_what_has_time_waits_for_the_answer_of_what_was_asked_before(
    loop: FakeLoop, reader: SocketReader, near: ReadConnection, far: socket
) -> None:
    loop.turn()
    assert leaves_at_once(near)
    near.push(b"first")
    reader.behind = True
    near.push(b"second")
    reader.behind = False
    assert leaves_at_once(near)
    loop.turn()
    assert not leaves_at_once(near)
    near.push(b"third")
    assert leaves_at_once(near)
    assert exactly(far, 16) == b"firstsecondthird"


def test_requests_of_one_turn_are_sent_together(
    loop: FakeLoop, reader: SocketReader, near: ReadConnection, far: socket
) -> None:
    """Of one turn, whichever of them was asked first."""
    loop.turn()
    for order in ((True, False), (False, True)):
        near.push(b"first")
        for behind in order:
            reader.behind = behind
            near.push(b"second")
        reader.behind = False
        loop.turn()
        assert leaves_at_once(near)
        assert exactly(far, 17) == b"firstsecondsecond"


def test_a_turn_that_does_not_end_keeps_nothing_back(
    near: ReadConnection, far: socket
) -> None:
    """The loop is blocked by what runs after it asked: the helper sends for it."""
    near.push(b"first")
    near.push(b"second")
    assert exactly(far, 11) == b"firstsecond"


def test_others_than_the_loop_do_not_wait_for_its_turn(
    near: ReadConnection, far: socket
) -> None:
    near.push(b"first")
    near.push(b"second")
    thread = threading.Thread(target=near.push, args=(b"other",))
    thread.start()
    assert exactly(far, 16) == b"firstsecondother"
    thread.join(PATIENCE)


def test_bytes_that_the_socket_refuses_are_sent_by_the_helper(
    near: ReadConnection, far: socket
) -> None:
    near.push(b"x" * LARGE)
    assert near.needs_help()
    thread = threading.Thread(target=near.push, args=(b"end",))
    thread.start()
    assert exactly(far, LARGE + 3) == b"x" * LARGE + b"end"
    thread.join(PATIENCE)


def asked(near: ReadConnection) -> tuple[list[object], threading.Event]:
    """A request of the loop's, and what becomes of it."""
    responses, done = list[object](), threading.Event()

    def answered(response: object) -> None:
        responses.append(response)
        done.set()

    with near.lock:
        number = near.get_request_id()
    near.send_msg(OptionsMessage(), number, answered)
    return responses, done


def test_each_request_fails_when_the_server_hangs_up(
    loop: FakeLoop, near: ReadConnection, far: socket
) -> None:
    responses, done = asked(near)
    far.close()
    while not done.is_set():
        readable(loop)
    assert near.is_closed
    assert isinstance(responses[0], ConnectionShutdown)
    loop.turn()
    assert not loop.readers
    assert near._socket.fileno() == -1


def test_a_connection_that_was_reset_is_given_up(
    loop: FakeLoop, near: ReadConnection, far: socket
) -> None:
    responses, done = asked(near)
    far.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    while not done.is_set():
        near.push(b"more")
        readable(loop)
    assert near.is_defunct or near.is_closed
    assert isinstance(responses[0], ConnectionShutdown)


class Deaf:
    """A socket that nothing can be sent over, and that says nothing about it."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self.shutdown = sock.shutdown
        self.close = sock.close

    def send(self, _: bytes) -> int:
        raise OSError(errno.EHOSTUNREACH, "no route to the host")

    def recv(self, _: int) -> bytes:
        raise BlockingIOError


def test_one_that_nothing_can_be_sent_over_is_given_up(
    near: ReadConnection, far: socket
) -> None:
    near._socket = cast("socket", Deaf(near._socket))
    responses, done = asked(near)
    assert done.wait(PATIENCE)  # by the helper thread
    assert near.is_defunct
    assert isinstance(responses[0], ConnectionShutdown)
    assert far.recv(1) == b""


def test_other_threads_are_answered_though_the_loop_reads_nothing(
    near: ReadConnection, far: socket
) -> None:
    done = threading.Event()

    def ask() -> None:
        responses, answered = asked(near)
        assert answered.wait(PATIENCE)
        assert isinstance(responses[0], ConnectionShutdown)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    exactly(far, HEADER)
    far.close()
    assert done.wait(PATIENCE)
    thread.join(PATIENCE)


def test_nonsense_ends_it(loop: FakeLoop, near: ReadConnection, far: socket) -> None:
    responses, done = asked(near)
    far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
    while not done.is_set():
        readable(loop)
    assert near.is_defunct
    assert isinstance(responses[0], ConnectionShutdown)
