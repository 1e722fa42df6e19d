"""Peers that are not what they should be: they say a fixed text, or nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def stranger(says: bytes | None) -> Iterator[int]:
    """Answers whatever comes first with this and hangs up; None: never. Its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            clients.append(client)
            if says is not None:
                with suppress(OSError):
                    client.recv(65536)
                    client.sendall(says)
                    client.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        port: int = listener.getsockname()[1]
        yield port
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        listener.close()
        thread.join()
        for client in clients:
            client.close()


def read_to_the_end(peer: socket.socket) -> None:
    """Return when the other side has ended the connection; ``TimeoutError`` if not."""
    peer.settimeout(15)
    while peer.recv(65536):
        pass
