"""Three stores, and how each of them is out of reach for a while."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.proxy import Proxy
from tests.servers.store_url import STORES, store_url

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


@pytest.fixture(params=STORES)
def site(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, Outage]]:
    """The URL of a store, and its outage."""
    url = store_url(request, tmp_path)
    if request.param == "sqlite":
        yield url, lambda: busy(tmp_path / "locks.db")
        return
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port) as proxy:
        through = url.replace(f":{port}/", f":{proxy.port}/")
        yield through, lambda: unreachable(proxy)
