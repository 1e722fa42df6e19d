"""A fake server: each of its steps is taken when a history says so."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

import hiredis

from aiorwlock_remote.backends.redis.connection.protocol import RespProtocol
from tests.backends.redis.some_scripts import BOTH

MORE = object()
TEXTS = {script.text.encode(): script.sha.encode() for script in BOTH}


class Line:
    """One connection, both ends of it. A ``Wire`` to the conversation at our end."""

    def __init__(
        self, server: Server, number: int, talk: RespProtocol, loop: AbstractEventLoop
    ) -> None:
        self.number = number
        self.talk = talk
        self.open = True
        """Our end."""
        self.killed = False
        self.read = hiredis.Reader(notEnoughData=MORE)
        """What has reached the server."""
        self.answers = bytearray()
        """What has not reached us."""
        self.channels: set[bytes] = set()
        self._server = server
        self._loop = loop

    def write(self, data: bytes) -> None:
        if self.open:
            self.read.feed(data)
        said = hiredis.Reader(notEnoughData=MORE)
        said.feed(data)
        while (command := said.gets()) is not MORE:
            if command[0] in {b"EVAL", b"EVALSHA"}:
                self._server.is_asked(self, int(command[4]))

    def wake(self) -> None:
        self._loop.call_soon(self.talk.flush)

    def unsent(self) -> int:
        return 0

    def abort(self) -> None:
        if self.open:
            self.open = False
            self._loop.call_soon(self.talk.lost, None)

    def cut(self) -> None:
        """We notice before what was gathered in this turn of the loop is flushed."""
        if self.open:
            self.open = False
            self.talk.lost(None)

    async def aclose(self) -> None:
        self.abort()

    def deliver(self, size: int) -> None:
        """Some bytes of what the server has answered."""
        data = bytes(self.answers[:size])
        del self.answers[:size]
        if self.open and data:
            self.talk.received(data)

    def carry_out(self) -> bool:
        """The next command, if there is one."""
        if self.killed:
            return False
        command = self.read.gets()
        if command is MORE:
            return False
        self.answers += self._server.answer(self, command)
        return True


class Server:
    """Carries out what its lines ask for, and notes in which order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.scripts: set[bytes] = set()
        self.mood = ""
        """How it refuses each script, if it does."""
        self.run = 0
        self.done: list[tuple[bytes, int]] = []
        """By key and number."""
        self.written: set[int] = set()

    def connected(self, talk: RespProtocol, loop: AbstractEventLoop) -> Line:
        line = Line(self, len(self.lines), talk, loop)
        self.lines.append(line)
        return line

    def is_asked(self, line: Line, number: int) -> None:
        """A request was written."""
        del line
        self.written.add(number)

    def restart(self) -> None:
        """All are hung up on, and what they sent is lost."""
        self.run += 1
        self.forget()
        for line in self.lines:
            line.killed = True
            line.abort()

    def forget(self) -> None:
        """The scripts."""
        self.scripts.clear()

    def learn(self) -> None:
        """The scripts, from somebody else."""
        self.scripts.update(TEXTS.values())

    def publish(self, channel: bytes) -> None:
        for line in self.lines:
            if channel in line.channels and not line.killed:
                line.answers += push(b"message", bulk(channel), bulk(b"hi"))

    def answer(self, line: Line, command: list[bytes]) -> bytes:
        verb = command[0].decode().lower()
        command_method: Callable[[Line, list[bytes]], bytes] = getattr(self, f"_{verb}")
        return command_method(line, command)

    def _hello(self, line: Line, _: list[bytes]) -> bytes:
        role = b"replica" if self.mood.startswith("READONLY") else b"master"
        fields = (b"version", b"7.4.0", b"role", role, b"mode", b"standalone")
        number = bulk(b"id") + b":%d\r\n" % line.number
        return b"%4\r\n" + b"".join(map(bulk, fields)) + number

    def _info(self, _: Line, __: list[bytes]) -> bytes:
        return bulk(b"run_id:%d\r\n" % self.run)

    def _ping(self, _: Line, __: list[bytes]) -> bytes:
        return b"+PONG\r\n"

    def _echo(self, _: Line, command: list[bytes]) -> bytes:
        return b":%b\r\n" % command[1]

    def _client(self, _: Line, command: list[bytes]) -> bytes:
        assert command[1:3] == [b"KILL", b"ID"]
        self.lines[int(command[3])].killed = True
        return b":1\r\n"

    def _script(self, _: Line, command: list[bytes]) -> bytes:
        sha = TEXTS[command[2]]
        self.scripts.add(sha)
        return bulk(sha)

    def _evalsha(self, line: Line, command: list[bytes]) -> bytes:
        if command[1] not in self.scripts:
            return b"-NOSCRIPT No matching script.\r\n"
        return self._eval(line, command)

    def _eval(self, _: Line, command: list[bytes]) -> bytes:
        if self.mood:
            return b"-%b\r\n" % self.mood.encode()
        self.done.append((command[3], int(command[4])))
        return b":%b\r\n" % command[4]

    def _subscribe(self, line: Line, command: list[bytes]) -> bytes:
        line.channels.add(command[1])
        return push(b"subscribe", bulk(command[1]), b":1\r\n")

    def _unsubscribe(self, line: Line, command: list[bytes]) -> bytes:
        line.channels.discard(command[1])
        return push(b"unsubscribe", bulk(command[1]), b":1\r\n")


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def push(verb: bytes, *rest: bytes) -> bytes:
    return b">3\r\n" + bulk(verb) + b"".join(rest)
