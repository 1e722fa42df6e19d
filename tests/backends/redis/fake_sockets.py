"""Non-blocking sockets to fake Sentinels, and how names are resolved."""

from __future__ import annotations

import errno
import socket
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Sequence
from functools import partial
from selectors import EVENT_READ, SelectorKey
from types import SimpleNamespace
from typing import Any, Protocol, Self

import anyio.to_thread
import hiredis
import pytest

from aiorwlock_remote.backends.redis import addresses, sentinel
from tests.backends.redis.fake_server import MORE
from tests.backends.redis.fake_threads import Event, Threads

Address = tuple[str, int]

BUSY = 100
"""Looks at the sockets at one time."""


class Asked(Protocol):
    """Who is asked over these sockets."""

    address: Address
    port_state: str
    plugs: list[Plug]

    def answers(self, plug: Plug) -> None:
        """What has come over it."""


class Plug:
    """One socket, and the Sentinel at its other end."""

    def __init__(self, net: Net, *_: object) -> None:
        self._net = net
        self._said = bytearray()
        self._over: str = ""
        self.read = hiredis.Reader(notEnoughData=MORE)
        """What has reached the Sentinel."""
        self.unsaid = bytearray()
        """What has not reached us."""
        self.peer: Asked
        net.opened += 1
        self._number = net.opened
        net.plugs[self._number] = self

    # What the Sentinel and the network do.

    def deliver(self, size: int) -> None:
        """Some bytes of what it has said."""
        self._said += self.unsaid[:size]
        del self.unsaid[:size]
        self._net.threads.changed()

    def hung_up(self) -> None:
        self._over = self._over or "closed"
        self._net.threads.changed()

    def cut(self) -> None:
        self._over = "reset"
        self._net.threads.changed()

    def is_ready(self, event: int) -> bool:
        if event == EVENT_READ:
            return bool(self._said or self._over)
        return self.peer.port_state != "silent"

    # What we do.

    def fileno(self) -> int:
        return self._number

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def connect_ex(self, address: Address) -> int:
        self.peer = self._net.at(address)
        self.peer.plugs.append(self)
        return errno.EINPROGRESS

    def getsockopt(self, *_: int) -> int:
        return errno.ECONNREFUSED if self.peer.port_state == "refused" else 0

    def sendall(self, data: bytes) -> None:
        if self._over == "reset":
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.read.feed(data)
        self.peer.answers(self)

    def recv(self, _: int) -> bytes:
        if self._over == "reset":
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self._said and not self._over:
            raise BlockingIOError
        said, self._said = bytes(self._said), bytearray()
        return said

    def close(self) -> None:
        if self._net.plugs.pop(self._number, None):
            self.peer.plugs.remove(self)


class Choice:
    """As a selector."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._keys: dict[int, SelectorKey] = {}
        self._looks: Counter[float] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keys.clear()

    def register(self, number: int, event: int, data: object) -> None:
        assert number not in self._keys
        self._keys[number] = SelectorKey(number, number, event, data)

    def modify(self, number: int, event: int, data: object) -> None:
        self.unregister(number)
        self.register(number, event, data)

    def unregister(self, number: int) -> None:
        del self._keys[number]

    def get_map(self) -> dict[int, SelectorKey]:
        return self._keys

    def select(self, seconds: float) -> list[tuple[SelectorKey, int]]:
        end = self._net.loop.time() + seconds
        while True:
            ready = [
                (key, key.events)
                for key in self._keys.values()
                if self._net.plugs[key.fd].is_ready(key.events)
            ]
            self._looks[self._net.loop.time()] += 1
            assert max(self._looks.values()) < BUSY, "a busy loop"
            if ready or self._net.loop.time() >= end:
                return ready
            self._net.threads.wait(end)


class Net:
    """The network between who asks and the Sentinels; stands in for the real one."""

    def __init__(self, loop: AbstractEventLoop, asked: Sequence[Asked]) -> None:
        self.loop = loop
        self.threads = Threads(loop)
        self.plugs: dict[int, Plug] = {}
        """Those that are open."""
        self.opened = 0
        self.resolver = "well"
        """Or it knows nobody ("fails"), or is "silent"."""
        self._asked = asked
        self._patches = pytest.MonkeyPatch()
        patch = self._patches.setattr
        plug = partial(Plug, self)
        patch(
            sentinel,
            "socket",
            SimpleNamespace(**{**vars(socket), "socket": plug}),
        )
        choose = SimpleNamespace(DefaultSelector=partial(Choice, self))
        patch(sentinel, "selectors", choose)
        patch(anyio.to_thread, "run_sync", self.threads.run_sync)
        patch(addresses, "getaddrinfo", self._resolved)
        patch(addresses, "start_thread", self.threads.start)
        patch(addresses, "Event", partial(Event, self.threads, loop))

    def at(self, address: Address) -> Asked:
        """Who is to be met there."""
        (found,) = (asked for asked in self._asked if self._address(asked) == address)
        return found

    def is_over(self) -> None:
        """The real network is back."""
        self.threads.end()
        self._patches.undo()

    def _resolved(self, host: str, port: int, *, type: int, flags: int) -> list[Any]:  # noqa: A002 - its name
        numeric = host[0].isdigit()
        if not numeric:
            while not flags and self.resolver == "silent":
                self.threads.wait()
            if flags or self.resolver == "fails":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        there = (host, port) if numeric else ("10.3.0.1", port)
        return [(socket.AF_INET, type, 6, "", there)]

    @staticmethod
    def _address(asked: Asked) -> Address:
        host, port = asked.address
        return (host if host[0].isdigit() else "10.3.0.1"), port
