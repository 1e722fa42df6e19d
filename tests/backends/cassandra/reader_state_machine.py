"""A connection, the loop and the helper thread that read it, and a small server.

The test turns the loop, so that it is blocked in between, and says what the server
answers. The sockets are real, and so are the helper thread and the other threads that
send requests.
"""

from __future__ import annotations

import struct
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from select import select
from socket import (
    IPPROTO_TCP,
    SO_RCVBUF,
    SOL_SOCKET,
    TCP_NODELAY,
    create_server,
    socket,
)
from typing import Any
from unittest.mock import patch

from cassandra.connection import ConnectionShutdown, DefaultEndPoint
from cassandra.protocol import QueryMessage, SupportedMessage

from aiorwlock_remote.backends.cassandra import connection
from aiorwlock_remote.backends.cassandra.connection import connection_class
from aiorwlock_remote.backends.cassandra.socket_reader import SocketReader
from tests.backends.cassandra.fake_loop import FakeLoop

PATIENCE = 60.0
"""Seconds for what other threads than the test's own have to do."""
SOON = 0.01
"""Seconds until a timer is due that is cancelled at once."""
HEADER = 9
ANSWER = 0x84, 0x06
"""A response of version 4; SUPPORTED."""
GREETING = 0
"""The first request of a connection. It is never answered here."""


@dataclass
class Ask:
    """A request. ``outcomes``: each reply or error that its callback was given."""

    number: int
    who: str
    outcomes: list[object] = field(default_factory=list[object])
    over: threading.Event = field(default_factory=threading.Event)
    said: bool = False
    """Whether all of its answer is on its way."""

    def answered(self, response: object) -> None:
        self.outcomes.append(response)
        self.over.set()


def answer_to(number: int) -> bytes:
    """It names the request."""
    options = {"CQL_VERSION": "3.4.7", "COMPRESSION": "lz4", "ID": str(number)}
    body = struct.pack(">H", len(options))
    for name, value in options.items():
        body += text(name) + struct.pack(">H", 1) + text(value)
    return struct.pack(">BBhBI", ANSWER[0], 0, number, ANSWER[1], len(body)) + body


def text(of: str) -> bytes:
    return struct.pack(">H", len(of)) + of.encode()


class Server:
    """The other end: takes requests, and answers the chosen ones."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._data = b""
        self._unsaid = b""
        self.asked: list[int] = []
        """Not answered yet."""

    def take(self) -> None:
        """What has arrived."""
        while select([self._sock], [], [], 0)[0]:
            chunk = self._sock.recv(1 << 20)
            if not chunk:
                return
            self._data += chunk
        while len(self._data) >= HEADER:
            _, _, number, _, size = struct.unpack(">BBhBI", self._data[:HEADER])
            if len(self._data) < HEADER + size:
                return
            self._data = self._data[HEADER + size :]
            self.asked.append(number)

    def waits_for(self, number: int) -> None:
        """It arrives, whoever sends it."""
        while number not in self.asked:
            assert select([self._sock], [], [], PATIENCE)[0], "it was never sent"
            self.take()

    def says(self, number: int, part: float) -> None:
        """So much of an answer; the rest goes before whatever is said next."""
        self.says_the_rest()
        self.asked.remove(number)
        data = answer_to(number)
        some = int(part * len(data))
        self._sock.sendall(data[:some])
        self._unsaid = data[some:]

    def says_the_rest(self) -> None:
        data, self._unsaid = self._unsaid, b""
        self._sock.sendall(data)

    def hangs_up(self) -> None:
        self._sock.close()


class ReaderStateMachine:
    """One connection, until it is closed by either side."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(patch.object(connection, "TURN_GRACE", 0.02))
        self.loop = FakeLoop()
        self.reader = SocketReader(self.loop, threading.get_ident())
        self._stack.callback(self.reader.close)
        listening = self._stack.enter_context(create_server(("127.0.0.1", 0)))
        end = DefaultEndPoint(*listening.getsockname())
        options = [(SOL_SOCKET, SO_RCVBUF, 1 << 16)]
        make = connection_class(self.reader)
        self.near = make(end, protocol_version=4, connect_timeout=5.0, sockopts=options)
        far = self._stack.enter_context(listening.accept()[0])
        far.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 16)
        far.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.server = Server(far)
        self.server.waits_for(GREETING)
        self._asks: dict[int, Ask] = {}
        """By number, which is used again when it has been answered."""
        self._everybody: list[Ask] = []
        self._saying: Ask | None = None
        self._cancelled: list[list[object]] = []
        """What each timer did that was cancelled before it was due."""
        self._due = 0.0
        self._threads: list[threading.Thread] = []

    # ----------------------------------------------------------- who asks

    def _sent(self, size: int, who: str) -> Ask:
        with self.near.lock:
            ask = Ask(self.near.get_request_id(), who)
        self._asks[ask.number] = ask
        self._everybody.append(ask)
        message: Any = QueryMessage("x" * size, 1)
        self.near.send_msg(message, ask.number, ask.answered)
        return ask

    def loop_asks(self, size: int, *, behind: bool = False) -> None:
        """``behind``: it has time."""
        self.reader.behind = behind
        self._sent(size, "loop")
        self.reader.behind = False

    def another_asks(self, size: int) -> None:
        """And waits for as long as it takes, whatever the loop does."""
        sent = threading.Event()

        def ask() -> None:
            found = self._sent(size, "others")
            sent.set()
            assert found.over.wait(PATIENCE)

        thread = threading.Thread(target=ask)
        thread.start()
        self._threads.append(thread)
        assert sent.wait(PATIENCE)

    # ----------------------------------------------------------- what happens

    def loop_turns(self) -> None:
        """And reads what has arrived."""
        self.loop.turn()
        while ready := select(list(self.loop.readers), [], [], 0)[0]:
            for sock in ready:
                self.loop.readers[sock]()
            self.loop.turn()

    def server_says(self, place: int, part: float) -> None:
        """So much of one answer, if anybody waits for any."""
        self.server_says_the_rest()
        self.server.take()
        waiting = [number for number in self.server.asked if number != GREETING]
        if waiting:
            number = waiting[place % len(waiting)]
            self.server.says(number, part)
            self._saying = self._asks[number]
            self._saying.said = part == 1.0

    def server_says_the_rest(self) -> None:
        self.server.says_the_rest()
        if self._saying is not None:
            self._saying.said = True

    def it_is_late(self) -> None:
        """As the loop's request is, whose answer came while it was blocked."""
        said = [ask for ask in self._by("loop") if ask.said and not ask.outcomes]
        late, on_time = threading.Event(), list[bool]()

        def end() -> None:
            on_time.extend(ask.over.is_set() for ask in said)
            late.set()

        self.reader.later(0.0, end)
        assert late.wait(PATIENCE)
        assert all(on_time), "called late, and its answer lay there"

    def cancelled_in_time(self) -> None:
        """Unless this thread stood still meanwhile, and it was due before."""
        did: list[object] = []
        due = time.monotonic() + SOON
        self.reader.later(SOON, partial(did.append, "called")).cancel()
        if time.monotonic() < due:
            self._cancelled.append(did)
            self._due = due + SOON

    def server_hangs_up(self) -> None:
        self.server.hangs_up()
        self._all_are_answered()

    def we_close(self) -> None:
        self.near.close()
        self._all_are_answered()

    # ----------------------------------------------------------- what must hold

    def all_arrives(self) -> None:
        """Whatever the loop does, what was asked is sent."""
        for ask in self._asks.values():
            if not (ask.said or ask is self._saying):
                self.server.waits_for(ask.number)

    def other_threads_are_answered(self) -> None:
        """Whatever the loop does."""
        for ask in self._by("others"):
            if ask.said:
                assert ask.over.wait(PATIENCE), "answered, and nobody read it"

    def loop_is_answered(self) -> None:
        """When it turns."""
        self.loop_turns()
        for ask in self._by("loop"):
            if ask.said:  # by the helper thread, perhaps, which was at it just then
                assert ask.over.wait(PATIENCE)

    def _by(self, who: str) -> list[Ask]:
        return [ask for ask in self._asks.values() if ask.who == who]

    def _all_are_answered(self) -> None:
        for ask in self._by("others"):
            assert ask.over.wait(PATIENCE)
        while not self.near.is_closed:
            self.loop_turns()
        assert all(ask.over.wait(PATIENCE) for ask in self._by("loop"))

    def ends(self) -> None:
        """Each request has one outcome, and the outcome is its own."""
        if not self.near.is_closed:
            self.all_arrives()
            self.other_threads_are_answered()
            self.loop_is_answered()
            self.we_close()
        self.loop_turns()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads)
        for ask in self._everybody:
            (outcome,) = ask.outcomes
            if isinstance(outcome, SupportedMessage):
                assert outcome.options["ID"] == [str(ask.number)]
            else:
                assert isinstance(outcome, ConnectionShutdown)
        assert not self.loop.readers
        assert self.near._socket.fileno() == -1
        if self._cancelled:
            time.sleep(max(0.0, self._due - time.monotonic()))
        assert not any(self._cancelled)

    def leave(self) -> None:
        """Nothing of it is left, however it went."""
        self.near.close()
        self.loop.turn()
        self._stack.close()
