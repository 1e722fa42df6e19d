"""``connect`` takes users' clients as they are, and says what it takes instead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import oracledb
import pytest
import redis
import redis.asyncio
import valkey.asyncio
from asyncmy.pool import Pool as AsyncmyPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.backends.cassandra import CassandraBackend
from tests.servers.fix_cassandra import Keyspace
from tests.servers.redis import RedisServer

REDIS = "from aiorwlock_remote.backends.redis import RedisBackend"
POSTGRESQL = "from aiorwlock_remote.backends.postgresql import PostgresqlBackend"
MARIADB = "from aiorwlock_remote.backends.mariadb import MariadbBackend"
MYSQL = "from aiorwlock_remote.backends.mysql import MysqlBackend"


async def locks_work(store: Any, *, others: str) -> None:  # noqa: ANN401 - any client
    """It locks what another program locks by URL, and a fence comes back."""
    async with (
        connect(store) as locks,
        connect(others) as far,
        locks.mutex("client", 1) as held,
    ):
        assert held.fence > 0
        assert await far.mutex("client", 1).try_acquire() is None


@pytest.mark.parametrize("library", [redis.asyncio.Redis, valkey.asyncio.Valkey])
@pytest.mark.asyncio
async def test_a_redis_client(
    fresh_redis: RedisServer, library: type[redis.asyncio.Redis]
) -> None:
    class Mine(library):  # type: ignore[misc, valid-type]
        """Of a user's own class."""

    for kind in (library, Mine):
        client = kind.from_url(fresh_redis.url)
        await locks_work(client, others=fresh_redis.url)
        assert await client.ping()
        await client.aclose()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_pool_and_an_engine_of_postgresql(tables: str) -> None:
    async with asyncpg.create_pool(tables, min_size=1, max_size=3) as pool:
        await locks_work(pool, others=tables)
        assert await pool.fetchval("SELECT 1") == 1
    engine = create_async_engine(tables.replace("postgresql:", "postgresql+asyncpg:"))
    await locks_work(engine, others=tables)
    await engine.dispose()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_an_engine_of_mariadb(mariadb_tables: str) -> None:
    engine = create_async_engine(mariadb_tables.replace("mariadb:", "mariadb+asyncmy:"))
    await locks_work(engine, others=mariadb_tables)
    await engine.dispose()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_session_of_cassandra(keyspace: Keyspace) -> None:
    from cassandra.cluster import Cluster  # noqa: PLC0415 - slow

    cluster = Cluster(["127.0.0.1"], port=keyspace.node.port)
    try:
        session = cluster.connect(keyspace.name)
        await CassandraBackend(session).create_schema()
        await locks_work(session, others=keyspace.url)
    finally:
        cluster.shutdown()


@pytest.mark.asyncio
async def test_the_backend_of_an_engine() -> None:
    for url, kind in [
        ("postgresql+asyncpg://u@h/d", "PostgresqlBackend"),
        ("mariadb+asyncmy://u@h/d", "MariadbBackend"),
        ("mysql+asyncmy://u@h/d", "MysqlBackend"),
        ("oracle+oracledb_async://u:p@h/?service_name=s", "OracleBackend"),
    ]:
        assert type(connect(create_async_engine(url))._store).__name__ == kind


def oracle_pool() -> oracledb.AsyncConnectionPool:
    return oracledb.create_pool_async("u/p@h/s", min=0, max=1)


@pytest.mark.asyncio
async def test_a_pool_of_oracle() -> None:
    assert repr(connect(oracle_pool())._store) == "<OracleBackend of the pool user>"


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("sync redis", redis.Redis, REDIS),
    ("cluster", lambda: redis.asyncio.RedisCluster(host="h"), REDIS),
    ("sync engine", lambda: create_engine("postgresql+psycopg://u@h/d"), POSTGRESQL),
    ("psycopg", lambda: create_async_engine("postgresql+psycopg://u@h/d"), POSTGRESQL),
    ("aiomysql", lambda: create_async_engine("mysql+aiomysql://u@h/d"), MYSQL),
    ("asyncmy", lambda: AsyncmyPool.__new__(AsyncmyPool), MARIADB),
    ("asyncmy, too", lambda: AsyncmyPool.__new__(AsyncmyPool), MYSQL),
    ("sqlite", lambda: create_async_engine("sqlite+aiosqlite://"), "sqlite:///path"),
    ("orm session", AsyncSession, "connect(engine)"),
]


@pytest.mark.parametrize(
    ("make", "hint"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
@pytest.mark.asyncio
async def test_unsupported_clients_are_refused_with_a_hint(
    make: Callable[[], Any], hint: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await connect(make())
    assert hint in str(refused.value)


@pytest.mark.asyncio
async def test_objects_that_are_no_client_are_refused() -> None:
    for wrong in (5, None, Path("locks.db"), object()):
        with pytest.raises(ConfigurationError, match="a URL, a client or a Backend"):
            await connect(wrong)  # type: ignore[arg-type]


def test_no_driver_is_imported() -> None:
    """The class of a client tells its library."""
    code = (
        "import sys\n"
        "from aiorwlock_remote import ConfigurationError, connect\n"
        "class Client: pass\n"
        "for library in ('redis.client', 'asyncpg.pool', 'sqlalchemy', 'oracledb'):\n"
        "    Client.__module__ = library\n"
        "    try:\n"
        "        connect(Client())\n"
        "    except ConfigurationError as error:\n"
        "        print(type(error).__name__)\n"
        "    names = {name.partition('.')[0] for name in sys.modules}\n"
        "    assert not names & {'redis', 'sqlalchemy'}, names\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ConfigurationError\n" * 4
