"""Three stores, and how each of them is out of reach for a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

Outage = Callable[[], AbstractContextManager[None]]


@contextmanager
def unreachable(proxy: Proxy) -> Iterator[None]:
    """Nobody listens, and what was connected is cut."""
    proxy.refuse()
    proxy.cut()
    try:
        yield
    finally:
        proxy.accept()


@contextmanager
def busy(path: Path) -> Iterator[None]:
    """Another program writes, and does not end."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Outage]]:
    """The URL of a store, and its outage."""
    if request.param == "sqlite":
        path = tmp_path / "locks.db"
        yield f"sqlite:///{path}", lambda: busy(path)
        return
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("fresh_redis")
        url, port = server.url, server.port
    else:
        url = request.getfixturevalue("tables")
        port = int(url.rpartition(":")[2].partition("/")[0])
    with Proxy(port) as proxy:
        through = url.replace(f":{port}/", f":{proxy.port}/")
        yield through, lambda: unreachable(proxy)
