"""A proxy in front of the server: what arrives there is counted, or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.servers.mariadb import OWNER, MariadbServer
from tests.servers.process import IP
from tests.servers.proxy import Proxy


@contextmanager
def through(server: MariadbServer, url: str) -> Iterator[tuple[Proxy, str]]:
    """The proxy, and the URL of that database that leads through it."""
    with Proxy(server.port) as proxy:
        scheme, database = url.partition(":")[0], url.rpartition("/")[2]
        yield proxy, f"{scheme}://{OWNER}@{IP}:{proxy.port}/{database}"


async def quiet(proxy: Proxy) -> None:
    """The keeper has logged in, too: both have said who they are and how they work."""

    async def ready() -> bool:
        return sum(b"READ COMMITTED" in chunk for chunk in proxy.chunks) == 2

    await wait_until(ready, 30)
