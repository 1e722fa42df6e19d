"""Fixtures: databases at the shared PostgreSQL, and servers to be stopped."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import format_stack
from typing import Any

import asyncpg
import psycopg
import pytest

from aiorwlock_remote.backends.postgresql.statements import statements_of
from tests.servers.postgresql import Postgresql, PostgresqlServer

StartPostgresql = Callable[..., Postgresql]


def make_tables(url: str) -> None:
    """What ``rwlock schema postgresql`` prints."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements_of():
            connection.execute(statement)


@pytest.fixture(scope="session", autouse=True)
def connections_tell_who_opened_them() -> Iterator[None]:
    """One that is not closed is found by the garbage collector, in a later test."""
    prepare = asyncpg.Connection.__init__

    def prepared(connection: Any, *args: Any, **named: Any) -> None:  # noqa: ANN401
        prepare(connection, *args, **named)
        test, stack = os.environ.get("PYTEST_CURRENT_TEST"), format_stack(limit=12)
        connection._source_traceback = f"{test}\n{''.join(stack)}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg.Connection, "__init__", prepared)
        yield


@pytest.fixture
def database(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """The URL of an empty database for this test."""
    with postgresql_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


@pytest.fixture
def tables(database: str) -> str:
    """The same, with our tables in it."""
    make_tables(database)
    return database


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that the server's user may enter."""
    with tempfile.TemporaryDirectory(prefix="postgresql-") as name:
        yield Path(name)


@pytest.fixture
def start_postgresql(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartPostgresql]:
    """Starts a server with our tables: ``start_postgresql(config=…)``."""
    servers: list[Postgresql] = []

    def start(*, config: dict[str, str] | None = None) -> Postgresql:
        servers.append(Postgresql(tmp_path_factory.mktemp("postgresql"), config))
        make_tables(servers[-1].url)
        return servers[-1]

    yield start
    for server in servers:
        server.close()
