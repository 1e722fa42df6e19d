"""Bad input: each a typed error that says what to do."""

from __future__ import annotations

import socket

import psycopg
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
    connect,
)
from tests.servers.fix_postgresql import make_tables
from tests.servers.process import IP, free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


async def refused(url: str, error: type[Exception], *expected: str) -> None:
    with pytest.raises(error) as caught:
        async with connect(url, connect_timeout=2):
            pass
    for text in expected:
        assert text in str(caught.value)


async def test_no_tables(database: str) -> None:
    await refused(database, Unsupported, "mutex_locks", "rwlock schema postgresql")


async def test_tables_without_our_columns(tables: str) -> None:
    run(tables, "ALTER TABLE doormans DROP COLUMN version")
    statement = "ALTER TABLE doormans ADD COLUMN version varchar"
    await refused(tables, Unsupported, statement)
    run(tables, statement)
    async with connect(tables) as locks, locks.mutex("order", 1):
        pass


async def test_a_column_of_another_type(tables: str) -> None:
    run(tables, "ALTER TABLE mutex_locks ALTER COLUMN resource_id TYPE bigint")
    await refused(tables, Unsupported, "mutex_locks.resource_id is bigint")


@pytest.mark.parametrize("table", ["mutex_locks", "doormans"])
@pytest.mark.parametrize(
    "instead",
    [
        "DROP CONSTRAINT {}_pkey",
        (
            "DROP CONSTRAINT {}_pkey, ADD CONSTRAINT late"
            " UNIQUE (resource_type, resource_id) DEFERRABLE"
        ),
        "DROP CONSTRAINT {0}_pkey, ADD UNIQUE (resource_type, resource_id, {1}_at)",
    ],
)
async def test_a_table_without_its_key(tables: str, table: str, instead: str) -> None:
    """Two programs could sit there, and both believe in it."""
    made = "acquired" if table == "mutex_locks" else "created"
    run(tables, f"ALTER TABLE {table} {instead.format(table, made)}")
    statement = f"ALTER TABLE {table} ADD UNIQUE (resource_type, resource_id)"
    await refused(tables, Unsupported, f"{table} may have several rows", statement)
    run(tables, f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS late", statement)
    async with connect(tables) as locks, locks.mutex("order", 1):
        pass


@pytest.mark.parametrize(
    "harm",
    [
        "doormans ADD COLUMN owner integer NOT NULL",
        "mutex_locks ADD CHECK (resource_id < 5)",
    ],
)
async def test_a_table_that_takes_no_row_of_ours(tables: str, harm: str) -> None:
    """It will not take it the next time either."""
    run(tables, f"ALTER TABLE {harm}")
    async with connect(tables) as locks:
        with pytest.raises(Unsupported, match="rwlock schema postgresql"):
            await locks.mutex("order", 7).acquire()


async def test_no_such_database(database: str) -> None:
    await refused(f"{database}x", Unsupported, "does not exist")


async def test_no_such_role(database: str) -> None:
    url = database.replace("postgres@", "nobody:wrong@")
    await refused(url, Unsupported, "postgresql://user:password@host/database")


async def test_missing_rights(tables: str) -> None:
    role = f"r_{tables.rpartition('_')[2]}"
    run(tables, f"CREATE ROLE {role} LOGIN")
    try:
        url = tables.replace("postgres@", f"{role}@")
        await refused(url, Unsupported, "does not exist, or is not visible")
        run(tables, f"GRANT SELECT ON mutex_locks, doormans TO {role}")
        with pytest.raises(Unsupported, match="GRANT SELECT, INSERT"):
            async with connect(url) as locks, locks.mutex("order", 1):
                pass
        run(tables, f"GRANT INSERT, UPDATE, DELETE ON mutex_locks, doormans TO {role}")
        async with connect(url) as locks, locks.mutex("order", 1):
            pass
    finally:
        run(tables, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_a_schema_of_its_own(database: str) -> None:
    run(database, "CREATE SCHEMA away", "SET search_path = away")
    make_tables(f"{database}?options=-csearch_path%3Daway")
    url = f"{database}?schema=away"
    async with connect(url) as locks, locks.mutex("order", 1) as held:
        assert held.fence > 0
    await refused(database, Unsupported, "mutex_locks")


async def test_a_database_that_is_read_only(tables: str) -> None:
    name = tables.rpartition("/")[2]
    run(tables, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(BackendUnavailable, match="read-only") as caught:
        async with connect(tables) as locks, locks.mutex("order", 1):
            pass
    assert caught.value.nothing_done


async def test_a_database_that_cannot_write_every_name(database: str) -> None:
    """Nor will it when it is asked again: it is the name that is at fault."""
    name = database.rpartition("/")[2]
    latin = database.replace(name, f"{name}_latin")
    make = f"CREATE DATABASE {name}_latin ENCODING 'LATIN1' LOCALE 'C'"
    run(database, f"{make} TEMPLATE template0")
    try:
        make_tables(latin)
        async with connect(latin) as locks:
            async with locks.mutex("größe", 1).acquire(reason="日本"):
                pass
            with pytest.raises(ConfigurationError, match="another name"):
                await locks.mutex("日本", 1).acquire()
    finally:
        run(database, f"DROP DATABASE {name}_latin WITH (FORCE)")


async def test_serializable_by_default(tables: str) -> None:
    """Locks do not depend on the level that a database has."""
    name = tables.rpartition("/")[2]
    run(
        tables,
        f"ALTER DATABASE {name} SET default_transaction_isolation = serializable",
    )
    async with connect(tables) as locks, connect(tables) as others:
        for _ in range(3):
            async with locks.rwlock("order", 1).reader:
                assert await others.rwlock("order", 1).writer.try_acquire() is None
            async with others.rwlock("order", 1).writer:
                assert await locks.mutex("order", 1).try_acquire() is None


async def test_a_server_that_cannot_be_reached() -> None:
    url = f"postgresql://me@{IP}:{free_port()}/app"
    await refused(url, BackendUnavailable)


async def test_silence_ends_in_time() -> None:
    with socket.create_server((IP, 0)) as silent:
        url = f"postgresql://me@{IP}:{silent.getsockname()[1]}/app"
        await refused(url, BackendUnavailable)
