"""asyncmy and SQLAlchemy without the private parts that are used."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import pool as pools
from sqlalchemy.ext.asyncio import create_async_engine

from aiorwlock_remote import connect
from aiorwlock_remote.backends.mariadb import private_parts
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from aiorwlock_remote.backends.postgresql import driver as postgresql
from aiorwlock_remote.cas.driver import external_pool
from tests.backends.mariadb.pools import pool_of
from tests.backends.postgresql.test_engines import driven
from tests.without_parts.locking import differing, exclude_and_hand_over

pytestmark = pytest.mark.asyncio

OF_ASYNCMY = {
    "_transport": "Connection._transport",
    "_stream_broken": "Connection._stream_broken",
    "_result": "Cursor._result.server_status",
}


def hide(monkeypatch: pytest.MonkeyPatch, module: object, *names: str) -> None:
    """Make a module that asks for an attribute of these names not find it."""

    def found(thing: object, name: str, default: object) -> Any:  # noqa: ANN401
        return default if name in names else getattr(thing, name, default)

    monkeypatch.setattr(module, "getattr", found, raising=False)


class Plain:
    """A connection and a cursor of a driver that has nothing but public parts."""

    closed = False

    def close(self) -> None:
        self.closed = True


async def test_asyncmys_public_ways(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        connection = Plain()
        private_parts.abort(connection)
        assert connection.closed
        assert not private_parts.is_broken(connection)
        private_parts.set_status(connection, Plain())
        assert not hasattr(connection, "server_status")
    assert differing(caplog) == list(OF_ASYNCMY.values())


@pytest.mark.slow
@pytest.mark.parametrize("part", OF_ASYNCMY)
async def test_locks_over_another_asyncmy(
    part: str,
    mariadb_empty: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hide(monkeypatch, private_parts, part)
    async with pool_of(mariadb_empty) as backend:
        await backend.create_schema()
        async with connect(backend) as one, connect(mariadb_empty) as other:
            await exclude_and_hand_over(one, other)
    assert differing(caplog) in ([OF_ASYNCMY[part]], [])


@pytest.mark.slow
async def test_locks_over_another_asyncpg(
    tables: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hide(monkeypatch, postgresql, "_transport")
    async with connect(tables) as one, connect(tables) as other:
        await exclude_and_hand_over(one, other)
    assert differing(caplog) == ["Connection._transport"]


async def test_the_limit_of_another_pool_is_its_size(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = "sqlite+aiosqlite:///:memory:"
    made = {
        size: create_async_engine(
            url,
            poolclass=pools.AsyncAdaptedQueuePool,
            pool_size=size,
            max_overflow=2,
        ).pool
        for size in (3, 0)
    }
    assert external_pool.limit_of(made[3]) == 5
    assert external_pool.limit_of(made[0]) is None
    made[3]._max_overflow = -1  # type: ignore[attr-defined]
    assert external_pool.limit_of(made[3]) is None
    assert differing(caplog) == []
    hide(monkeypatch, external_pool, "_max_overflow")
    assert external_pool.limit_of(made[3]) == 3
    assert external_pool.limit_of(made[0]) is None
    null = create_async_engine(url, poolclass=pools.NullPool).pool
    assert external_pool.limit_of(null) is None
    assert differing(caplog) == ["QueuePool._max_overflow"]


@pytest.mark.slow
async def test_locks_over_another_pool_of_sqlalchemys(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hide(monkeypatch, external_pool, "_max_overflow")
    engine = create_async_engine(driven(database), pool_size=2, max_overflow=0)
    backend = PostgresqlBackend(engine)
    await backend.create_schema()
    async with connect(backend) as one, connect(database) as other:
        await exclude_and_hand_over(one, other)
    await engine.dispose()
    assert differing(caplog) == ["QueuePool._max_overflow"]
