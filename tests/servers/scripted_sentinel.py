"""A Sentinel that says what a test wants, over real sockets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import hiredis

NAME = "locks"
_MORE = object()


class ScriptedSentinel:
    """Names ``port`` as the primary since failover ``epoch``.

    It publishes nothing by itself. ``asked``: the questions so far.
    """

    def __init__(self, port: int, epoch: int = 1) -> None:
        self.view: tuple[int, int] | None = epoch, port
        self.listed: int | None = None
        """The port in the list of primaries, if another: a real Sentinel that leads a
        failover lists the former primary for a while."""
        self.asked: list[bytes] = []
        self.subscribed = threading.Event()
        """Somebody has subscribed since this was cleared."""
        self.deaf = False
        """Whether it refuses subscriptions."""
        self._clients: dict[socket.socket, set[bytes]] = {}
        self._modern: set[socket.socket] = set()
        """Those that speak RESP3."""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def names(self, port: int, epoch: int) -> None:
        """Name another primary; no message is sent."""
        self.view = epoch, port

    def publish(self, channel: bytes, text: str) -> int:
        """Tell all subscribers; how many."""
        push = b">3\r\n" + _bulk(b"message") + _bulk(channel) + _bulk(text.encode())
        receivers = 0
        with self._lock:
            for client, channels in self._clients.items():
                if channel in channels:
                    client.sendall(push)
                    receivers += 1
        return receivers

    def abort(self) -> None:
        """End all connections."""
        with self._lock:
            for client in self._clients:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse connections from now on, and end those there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self._threads[0].join()
        self.abort()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._clients[client] = set()
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        reader = hiredis.Reader(notEnoughData=_MORE)
        with suppress(OSError):
            while data := client.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not _MORE:
                    with self._lock:
                        client.sendall(self._answer(client, command))
        with self._lock:
            del self._clients[client]
        client.close()

    def _answer(self, client: socket.socket, command: list[bytes]) -> bytes:
        self.asked.append(b" ".join(command[:2]).upper())
        verb = command[0].upper()
        if verb == b"HELLO":
            self._modern.add(client)
            fields = (b"version", b"7.4.0", b"role", b"sentinel", b"mode", b"sentinel")
            return b"%4\r\n" + b"".join(map(_bulk, fields)) + _bulk(b"id") + b":1\r\n"
        if verb == b"INFO":
            return _bulk(b"run_id:%d\r\n" % self.port)
        if verb == b"SUBSCRIBE":
            return self._subscribe(client, command[1])
        if verb != b"SENTINEL":
            return b"+OK\r\n"
        if self.view is None:
            return b"*-1\r\n" if b"ADDR" in command[1].upper() else b"*0\r\n"
        epoch, port = self.view
        if command[1].upper() == b"GET-MASTER-ADDR-BY-NAME":
            return _array(b"127.0.0.1", b"%d" % port)
        if command[1].upper() == b"MASTERS":
            port = self.listed or port
        known = _array(
            *(b"name", NAME.encode(), b"ip", b"127.0.0.1", b"port", b"%d" % port),
            *(b"flags", b"master", b"config-epoch", b"%d" % epoch),
            *(b"num-other-sentinels", b"0"),
        )
        if client in self._modern:
            known = b"%6" + known.removeprefix(b"*12")
        return b"*1\r\n" + known if command[1].upper() == b"MASTERS" else known

    def _subscribe(self, client: socket.socket, channel: bytes) -> bytes:
        if self.deaf:
            return b"-NOPERM no permissions to access a channel\r\n"
        self._clients[client].add(channel)
        self.subscribed.set()
        return b">3\r\n" + _bulk(b"subscribe") + _bulk(channel) + b":1\r\n"


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _array(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(map(_bulk, words))
