"""Simulated Redis servers and the bytes on the way to them and back.

A ``Wire`` is one TCP connection. A ``Node`` reads RESP commands from its wires, one
after the other, and answers in RESP3. A wire that is cut may still deliver, late, what
was under way to the node, until the node has closed its end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import hiredis

from aiorwlock_remote.backends.redis.connection.protocol import Script
from aiorwlock_remote.core.timing import micros
from tests.simulation.redis_data import Keyspace, RedisError, lua_runner
from tests.simulation.store import LATEST_GHOST, QUICK, SLOW
from tests.simulation.world import BEGIN, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.redis import RedisServers

MORE = object()
SPEED_ERROR = 0.002
SKEW = 0.05
"""Seconds by which the clocks of two servers differ at most when the run begins."""
KEEPALIVE_SECONDS = 6.0
"""After so long a node ends a connection whose other end is away."""


class Push(list[Any]):
    """A push of RESP3."""


def encoded(value: Any) -> bytes:
    """Return a reply in RESP3."""
    match value:
        case None:
            return b"_\r\n"
        case RedisError():
            return b"-%b\r\n" % str(value).encode()
        case str():
            return b"+%b\r\n" % value.encode()
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case int():
            return b":%d\r\n" % value
        case dict():
            parts = [part for pair in value.items() for part in pair]
            return b"%%%d\r\n" % len(value) + b"".join(map(encoded, parts))
        case list():
            sign = b">" if isinstance(value, Push) else b"*"
            return b"%b%d\r\n" % (sign, len(value)) + b"".join(map(encoded, value))
        case _:
            raise AssertionError(f"no reply: {value!r}")


class Client(Protocol):
    """Who is connected, as a node sees it."""

    process: SimulatedProcess
    channels: set[bytes]
    number: int

    def push(self, push: Push) -> None:
        """Send a push, in its order among the replies."""

    def end_there(self) -> None:
        """Close the node's end; the process reads the end of the stream."""


class Wire:
    """One connection of a process to a node, as both ends see it."""

    def __init__(
        self,
        process: SimulatedProcess,
        node: Node,
        deliver: Callable[[Callable[[], object], float], object],
        received: Callable[[bytes], object],
        lost: Callable[[str], object],
    ) -> None:
        """``deliver(function, time)`` has the process call the other functions."""
        self.process = process
        self.node = node
        self.number = node.accept(self)
        self.channels: set[bytes] = set()
        self.is_open = True
        self.open_there = True
        self.silent = False
        """Nothing comes through any more, and no side knows."""
        self._world = process.world
        self._network = node.servers.network
        self._deliver = deliver
        self._received = received
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=MORE)
        self._last_there = self._last_back = 0.0
        self._late = 0.0
        self._coming: deque[Callable[[], object]] = deque()
        self._replies: bytearray | None = None

    @property
    def name(self) -> str:
        return f"{self.process.name}'s connection {self.number} to {self.node.name}"

    # The end of the process

    def write(self, data: bytes) -> None:
        if self.is_open:
            self.process.perhaps_stall()
            self._send(partial(self._arrive, data))
            if self._world.random.random() < self._network.cut:
                # Before the bytes arrive, or before the replies do.
                seconds = self._world.random.uniform(0.0, 2 * QUICK[1])
                self._world.after(seconds, partial(self.break_down, "under way"))

    def close(self) -> None:
        """Close this end in good order: what was written arrives."""
        if self.is_open:
            self.is_open = False
            if self.open_there and not self.silent:
                self._send(self.end_there)

    def break_down(self, why: str) -> None:
        """Cut the connection; the process notices as soon as it runs."""
        self._deliver(partial(self._cut, why), 0.0)

    def go_silent(self) -> None:
        """Let nothing through from now on, in either direction."""
        self._world.tell(f"{self.name} is silent from now on")
        self.process.was_cut = self.silent = True
        self.process.in_trouble(self._world.now + KEEPALIVE_SECONDS)
        self._world.after(KEEPALIVE_SECONDS, self.end_there)

    def _cut(self, why: str) -> None:
        if not self.is_open:
            return
        self._world.tell(f"{self.name} is cut: {why}")
        self.is_open, self.process.was_cut = False, True
        # What is under way is lost, or comes late, as if by another way.
        lost = self._world.random.random() < 0.5
        self._late = math.inf if lost else self._world.random.uniform(0, LATEST_GHOST)
        self._world.after(KEEPALIVE_SECONDS, self.end_there)
        self._lost(why)

    def _send(self, function: Callable[[], object]) -> None:
        there = max(self._last_there, self.process.time + self._delay())
        self._last_there = there
        self._world.at(there, function)

    # The end of the node

    def _arrive(self, data: bytes) -> None:
        node, world = self.node, self._world
        if not self.open_there or self.silent:
            return
        if node.busy_until > world.now:
            world.at(node.busy_until, partial(self._arrive, data))
            return
        if not self._late:
            self._carry_out(data)
        elif self._late < math.inf:
            world.after(self._late, partial(self._arrive_late, data))

    def _arrive_late(self, data: bytes) -> None:
        if self.open_there and not self.silent:
            self._world.tell(f"a late request of {self.name} is carried out")
            self._carry_out(data)

    def _carry_out(self, data: bytes) -> None:
        self._reader.feed(data)
        self._replies = bytearray()
        while self.open_there and (command := self._reader.gets()) is not MORE:
            self._replies += encoded(self.node.answer(self, command))
        replies, self._replies = bytes(self._replies), None
        if replies:
            self._reply(replies)

    def push(self, push: Push) -> None:
        if self._replies is None:
            self._reply(encoded(push))
        else:
            self._replies += encoded(push)

    def _reply(self, data: bytes) -> None:
        # Perhaps in two pieces, between which the connection may be lost.
        random = self._world.random
        cut = random.randrange(len(data)) if random.random() < 0.1 else 0
        for piece in (data[:cut], data[cut:]):
            if piece:
                back = max(self._last_back, self._world.now + self._delay())
                self._last_back = back
                self._coming.append(partial(self._get, piece))
                self._deliver(self._take, back)

    def end_there(self) -> None:
        if self.open_there:
            self.open_there = False
            self.node.forget(self)
            if not self.silent:
                back = max(self._last_back, self._world.now + self._delay())
                self._coming.append(self._ended)
                self._deliver(self._take, back)

    def _take(self) -> None:
        # A process that was stopped takes all in its order, too.
        self._coming.popleft()()

    def _get(self, piece: bytes) -> None:
        if self.is_open and not self.silent:
            self._received(piece)
            self.process.perhaps_interrupt()

    def _ended(self) -> None:
        if self.is_open and not self.silent:
            self.is_open = False
            self._lost("closed by the server")

    def _delay(self) -> float:
        random = self._world.random
        slow = random.random() < self._network.slow
        return random.uniform(*(SLOW if slow else QUICK))


class Node:
    """One server: its data, its scripts, and who is connected."""

    mode = "standalone"
    message = b"message"

    def __init__(self, servers: RedisServers, name: str) -> None:
        self.servers = servers
        self.name = name
        self.role = "master"
        self.busy_until = 0.0
        self.is_up = True
        self.run_id = f"{servers.world.random.getrandbits(160):040x}"
        self.set_back = 0.0
        """Seconds by which its clock has been set back."""
        self.data = Keyspace(self.now, self._publish)
        random = servers.world.random
        self._speed = 1.0 + random.uniform(-SPEED_ERROR, SPEED_ERROR)
        self._ahead = servers.ahead + random.uniform(0.0, SKEW)
        self.after_script: Callable[[], object] = lambda: None
        self._scripts: dict[str, str] = {}
        self._wires: dict[int, Client] = {}
        self._numbers = 0

    def now(self) -> int:
        seconds = (self.servers.world.now - BEGIN) * self._speed
        return micros(self._ahead + seconds - self.set_back)

    def accept(self, wire: Client) -> int:
        self._numbers += 1
        self._wires[self._numbers] = wire
        return self._numbers

    def forget(self, wire: Client) -> None:
        self._wires.pop(wire.number, None)

    def wires(self) -> list[Client]:
        return list(self._wires.values())

    def knows(self, sha: bytes) -> bool:
        return sha.decode() in self._scripts

    def forget_scripts(self) -> None:
        self._scripts.clear()

    def stop(self) -> None:
        """End, as by SIGKILL; all connections are lost."""
        self.is_up = False
        for wire in self.wires():
            wire.end_there()

    def answer(self, wire: Client, command: list[bytes]) -> Any:
        name, *args = command
        try:
            match name:
                case b"HELLO":
                    return self._hello(wire)
                case b"INFO":
                    return b"redis_version:7.2.0\r\nrun_id:%b" % self.run_id.encode()
                case b"SELECT":
                    return "OK"
                case b"PING":
                    return "PONG"
                case b"CONFIG":
                    return {b"notify-keyspace-events": b""}
                case b"CLIENT":
                    return self._kill(int(args[-1]))
                case b"SCRIPT":
                    script = Script("loaded", args[1].decode())
                    self._scripts[script.sha] = script.text
                    return script.sha.encode()
                case b"SUBSCRIBE" | b"SSUBSCRIBE":
                    return self._subscribe(wire, name, args[0])
                case b"UNSUBSCRIBE" | b"SUNSUBSCRIBE":
                    wire.channels.discard(args[0])
                    return Push([name.lower(), args[0], len(wire.channels)])
                case b"EVALSHA" | b"EVAL":
                    return self._eval(name, args)
                case _:
                    return self.data.carry_out(name, *args)
        except RedisError as exc:
            return exc

    def _hello(self, wire: Client) -> dict[bytes, Any]:
        return {
            b"server": b"redis",
            b"version": b"7.2.0",
            b"proto": 3,
            b"id": wire.number,
            b"mode": self.mode.encode(),
            b"role": self.role.encode(),
        }

    def _kill(self, number: int) -> int:
        wire = self._wires.get(number)
        if wire is None:
            raise RedisError("ERR No such client ID")
        wire.end_there()
        return 1

    def _subscribe(self, wire: Client, verb: bytes, channel: bytes) -> Push:
        wire.channels.add(channel)
        client_id = channel.rpartition(b"/")[2].decode()
        self.servers.clients[client_id] = wire.process
        return Push([verb.lower(), channel, len(wire.channels)])

    def _publish(self, channel: bytes, payload: bytes) -> int:
        heard = [wire for wire in self.wires() if channel in wire.channels]
        for wire in heard:
            wire.push(Push([self.message, channel, payload]))
        return len(heard)

    def _eval(self, name: bytes, args: list[bytes]) -> Any:
        text = args[0].decode() if name == b"EVAL" else self._known(args[0].decode())
        count = int(args[1])
        keys, argv = args[2 : 2 + count], args[2 + count :]
        if self.role != "master" and "flags=no-writes" not in text.partition("\n")[0]:
            raise RedisError("READONLY You can't write against a read only replica.")
        self.servers.requests += 1
        found = lua_runner().run(self.data, text, keys, argv)
        self.after_script()
        return found

    def _known(self, sha: str) -> str:
        text = self._scripts.get(sha)
        if text is None:
            raise RedisError("NOSCRIPT No matching script. Please use EVAL.")
        return text
