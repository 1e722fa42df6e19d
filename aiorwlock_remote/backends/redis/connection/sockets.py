"""What is done with the socket of every connection, blocking or not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

_PROBES = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
)


@contextmanager
def closing_if_failed(sock: socket.socket) -> Iterator[socket.socket]:
    """Whoever leaves by an error, or is cancelled, leaves no socket behind."""
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket) -> None:
    """Small writes leave at once; a dead peer is noticed within a minute when idle."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES:
        option = getattr(socket, name, None)  # macOS calls one of them otherwise
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
