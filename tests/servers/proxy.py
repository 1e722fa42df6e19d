"""A TCP proxy in a thread that delays, cuts, swallows and refuses."""

from __future__ import annotations

import random
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

Side = Literal["server", "client"]

CHUNK = 65536
_AT_ONCE = struct.pack("ii", 1, 0)


class Proxy:
    """Stands before ``host:port``, by default of the loopback; used from any loop.

    ``chunks`` counts what clients sent, one for each piece that arrived here: with a
    write of the client at a time, its writes. ``ended`` counts the connections that one
    of their two sides has ended; ``connections``, all that were made. ``first_ended``:
    whether the first of them is among those that ended.
    """

    def __init__(
        self,
        port: int,
        *,
        delay: float = 0.0,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        """``delay``: each piece waits for up to so many seconds, both ways."""
        self._host = host
        self.lead_to(port)
        self._delay = delay
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._swallow = False
        self._mute = False
        self._cut: tuple[Side, int] | None = None
        self._held: list[tuple[socket.socket, bytes]] | None = None
        self._pairs: set[socket.socket] = set()
        self._closed = False
        self.chunks: list[bytes] = []
        self.connections: int = 0
        self.ended: int = 0
        self.first_ended: bool = False
        self.orphans: int = 0
        self._listener: socket.socket | None = None
        self.port: int = 0
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lead_to(self, port: int) -> None:
        """Another server, for those who come from now on."""
        self._target = (self._host, port)

    def accept(self) -> None:
        """Take connections (again)."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._serve, args=(listener,), daemon=True).start()

    def refuse(self) -> None:
        """Nobody listens any more; what is connected stays."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listener.close()

    def slow(self, seconds: float) -> None:
        """Let each piece wait for up to so many seconds, both ways, from now on."""
        self._delay = seconds

    def black_hole(self, *, on: bool) -> None:
        """Pass nothing on, no end either; what came meanwhile is lost.

        ``orphans`` counts the ends that were not passed on.
        """
        with self._lock:
            self._swallow = on

    def mute(self) -> None:
        """Nothing that servers say is passed on from now; they are heard."""
        with self._lock:
            self._mute = True

    def hold(self) -> None:
        """Keep what clients send from now on; see ``let_go``."""
        with self._lock:
            self._held = []

    @property
    def held(self) -> int:
        """How many pieces are kept back now."""
        with self._lock:
            return len(self._held or ())

    def let_go(self) -> None:
        """Pass on what was held, though its sender may have given up since."""
        with self._lock:
            held, self._held = self._held or [], None
        for target, data in held:
            target.sendall(data)

    def cut_after(self, count: int, *, to: Side) -> None:
        """Cut all connections when so many more bytes have gone to that side."""
        with self._lock:
            self._cut = (to, count)

    def cut(self, *, reset: bool = False) -> None:
        """Cut all connections now. New ones are not mute.

        ``reset``: nobody can write to them any more, as if a peer that has not read
        everything was killed.
        """
        with self._lock:
            pairs = list(self._pairs)
            self._mute = False
        for sock in pairs:
            with suppress(OSError):
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self.refuse()
        self.cut()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:  # from now on it can be cut, though it leads nowhere yet
                refused = self._listener is not listener
                self._pairs.add(client)
            if refused:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._pair, args=(client,), daemon=True).start()

    def _pair(self, client: socket.socket) -> None:
        try:
            self._pass(client)
        finally:
            with self._lock:
                self._pairs.discard(client)

    def _pass(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target, 5)
            except OSError:
                return
            with server, selectors.DefaultSelector() as selector:
                server.settimeout(None)
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(client, selectors.EVENT_READ, ("server", server))
                selector.register(server, selectors.EVENT_READ, ("client", client))
                with self._lock:
                    self._pairs.add(server)
                    self.connections += 1
                    is_first = self.connections == 1
                if not self._closed:
                    with suppress(OSError):
                        while self._passed(selector):
                            pass
                with self._lock:
                    self._pairs.discard(server)
                    self.ended += 1
                    self.first_ended |= is_first

    def _passed(self, selector: selectors.BaseSelector) -> bool:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(CHUNK)
            if not data:
                if not self._swallow:
                    return False
                # The end is swallowed too: the other side is left without a peer.
                selector.unregister(key.fileobj)
                self.orphans += 1
                continue
            side, target = key.data
            if self._delay:
                time.sleep(self._random.random() * self._delay)
            if side == "server" and self._kept(target, data):
                continue
            allowed, cut = self._allowed(side, data)
            target.sendall(allowed)
            if cut:
                self.cut()
                return False
        return True

    def _kept(self, target: socket.socket, data: bytes) -> bool:
        with self._lock:
            if self._held is None:
                return False
            self._held.append((target, data))
            return True

    def _allowed(self, side: Side, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            if side == "server":
                self.chunks.append(data)
            if self._swallow or (self._mute and side == "client"):
                return b"", False
            if self._cut is None or self._cut[0] != side:
                return data, False
            left = self._cut[1] - len(data)
            if left > 0:
                self._cut = (side, left)
                return data, False
            self._cut = None
            return data[: len(data) + left], True
