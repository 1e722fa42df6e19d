"""Programs that cancel every task of their loop, and go on using their locks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiorwlock_remote import Locks, connect
from tests.backends.cassandra.conftest import furnish
from tests.backends.oracle.programs import make_tables
from tests.cancelled_tasks import cancel_all_others
from tests.servers.fix_cassandra import Keyspace
from tests.servers.oracle.client import OracleUser

LEASE = 30.0
PATIENCE = 10.0
"""Seconds; well below the lease, which nothing may have to wait for."""
NAMES = 4
TASKS = 6 * NAMES
ROUNDS = 4

STORES = [
    *("memory", "sqlite", "file", "redis", "postgresql", "mariadb", "mysql"),
    *("oracle", "cassandra", "etcd"),
]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind, in which no other test has a lock of these names."""
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/locks.db"
        case "file":
            return f"file://{tmp_path}"
        case "redis":
            return str(request.getfixturevalue("redis_server").url)
        case "oracle":
            user: OracleUser = request.getfixturevalue("oracle_user")
            make_tables(user)
            return user.url
        case "cassandra":
            keyspace: Keyspace = request.getfixturevalue("keyspace")
            furnish(keyspace, "pair")
            return keyspace.url
    names = {"postgresql": "tables", "etcd": "etcd_url"}
    name = names.get(request.param, f"{request.param}_tables")
    return str(request.getfixturevalue(name))


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 4, 20])
def test_the_next_ones_get_in_and_nothing_is_left(
    url: str, turns: int, tmp_path: Path
) -> None:
    """``turns`` of the loop after they began; bodies release as they are cancelled."""

    async def program() -> None:
        kind = f"{tmp_path.name}-{turns}"
        async with connect(url, lease=LEASE) as locks:
            for _ in range(ROUNDS):
                tasks = [
                    asyncio.create_task(use(locks, kind, number % NAMES))
                    for number in range(TASKS)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancel_all_others()
                assert all(task.done() for task in tasks)
            for number in range(NAMES):
                async with locks.mutex(kind, number).acquire(timeout=PATIENCE):
                    pass
            assert [seen async for seen in locks.list(kind)] == []

    asyncio.run(program())


async def use(locks: Locks, kind: str, number: int) -> None:
    async with locks.mutex(kind, number):
        await asyncio.sleep(60)
