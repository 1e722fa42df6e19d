"""``connect``: entered by one at a time, as often as one likes."""

from __future__ import annotations

from collections.abc import Awaitable
from importlib import import_module
from inspect import iscoroutinefunction
from math import inf
from types import ModuleType
from typing import Any

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, LockError, connect, registry
from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.backends.mariadb import MariadbBackend
from aiorwlock_remote.backends.memory import open_store
from aiorwlock_remote.backends.mysql import MysqlBackend
from aiorwlock_remote.backends.oracle import OracleBackend
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from aiorwlock_remote.backends.redis import RedisBackend
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import EventLoop, StoreBase, StoreSettings, WakeCallback

pytestmark = pytest.mark.anyio


async def test_one_is_not_entered_twice_at_once() -> None:
    """The first ``Locks`` would never be closed."""
    connecting = connect("memory://")
    async with connecting as locks:
        with pytest.raises(ConfigurationError, match="entered already"):
            async with connecting:
                pass
        async with locks.mutex("order", 1):
            pass


async def test_one_after_the_other() -> None:
    connecting = connect("memory://")
    for _ in range(2):
        async with connecting as locks, locks.mutex("order", 1):
            pass


async def test_again_after_a_failure() -> None:
    connecting = connect("sqlite:////proc/nowhere/locks.db")
    for _ in range(2):
        with pytest.raises(LockError) as caught:
            async with connecting:
                pass
        assert "entered" not in str(caught.value)


def test_a_forgotten_await_is_reported() -> None:
    connecting: Any = connect("memory://")
    with pytest.raises(AttributeError, match="'mutex' before `await`"):
        connecting.mutex("order", 42)
    with pytest.raises(AttributeError, match=r"no attribute 'mutexes'$"):
        connecting.mutexes("order", 42)


class Backend:
    """Imports much in ``open``; the rest is awaited. ``left``: the time for either."""

    def __init__(self) -> None:
        self.left: list[float] = []

    def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> Awaitable[StoreBase]:
        self.left.append(anyio.current_effective_deadline())

        async def opened() -> StoreBase:
            self.left.append(anyio.current_effective_deadline())
            return await open_store(parse("memory://"), loop, wake, settings)

        return opened()


async def test_imports_take_no_time_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long they take, they end before ``connect_timeout`` begins.

    On a busy host they took longer: every process of 125 that were started at once was
    reported that its store did not answer.
    """
    left: list[float] = []

    def slowly(module: str) -> ModuleType:
        left.append(anyio.current_effective_deadline())
        return import_module(module)

    monkeypatch.setattr(registry, "import_module", slowly)
    await (await connect("memory://")).aclose()
    assert left == [inf]


async def test_nor_do_those_of_a_backend() -> None:
    backend = Backend()
    await (await connect(backend)).aclose()
    imported, awaited = backend.left
    assert imported == inf
    assert awaited < inf


async def test_ours_import_before_they_are_awaited() -> None:
    """All that ``open`` imports, it imports when it is called."""
    for backend in (
        CassandraBackend,
        MariadbBackend,
        MysqlBackend,
        OracleBackend,
        PostgresqlBackend,
        RedisBackend,
    ):
        assert not iscoroutinefunction(backend.open), backend
