"""What an error says of a server that closes each connection at once.

As do a proxy that has no server behind it, and a server that blocks this host.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest

from aiorwlock_remote import BackendUnavailable, connect
from tests.servers.process import IP

URLS = [
    "cassandra://{}/app?local_dc=dc1",
    "etcd://{}/app",
    "mariadb://me@{}/app",
    "mysql://me@{}/app",
    "oracle://me:password@{}/app",
    "postgresql://me@{}/app",
    "redis://{}/0",
    "redis+cluster://{}",
    "redis+sentinel://{}/main",
]


@pytest.fixture
def closing() -> Iterator[str]:
    """The address of such a server."""
    with socket.create_server((IP, 0), backlog=20) as server:

        def close_each() -> None:
            with suppress(OSError):  # it was shut down
                while True:
                    server.accept()[0].close()

        thread = Thread(target=close_each)
        thread.start()
        yield f"{IP}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.asyncio
@pytest.mark.parametrize("url", URLS, ids=lambda url: url.partition(":")[0])
async def test_a_connection_closed_by_the_server_is_reported(
    closing: str, url: str
) -> None:
    with pytest.raises(BackendUnavailable) as refused:
        async with connect(url.format(closing), connect_timeout=2):
            pass
    said = str(refused.value)
    assert closing in said
    assert "closed" in said or "reset" in said
    assert "<" not in said  # nor what the objects of a driver are called
