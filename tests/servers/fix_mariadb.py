"""Fixtures: databases at the shared MariaDB, and servers to be stopped."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiorwlock_remote.backends.mariadb.dialect import MARIADB, MYSQL
from aiorwlock_remote.backends.mariadb.schema import statements_of
from tests.servers.mariadb import Mariadb, MariadbServer, prepare, run
from tests.servers.shared import shared, shared_folder

StartMariadb = Callable[..., Mariadb]


def make_tables(url: str) -> None:
    """What ``rwlock schema mariadb`` prints, or ``rwlock schema mysql``."""
    dialect = MYSQL if url.startswith("mysql") else MARIADB
    run(url, *statements_of(dialect))


@pytest.fixture(scope="session")
def mariadb_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MariadbServer]:
    """Shared by all workers: use a database of your own."""
    folder = shared_folder(tmp_path_factory, "shared-mariadb")
    with shared(folder, prepare, end=signal.SIGTERM) as facts:
        server = MariadbServer(Path(facts["home"]), facts["port"])
        server.wait()
        yield server


@pytest.fixture
def mariadb_empty(mariadb_server: MariadbServer) -> Iterator[str]:
    """The URL of an empty database for this test."""
    with mariadb_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


@pytest.fixture
def mariadb_tables(mariadb_empty: str) -> str:
    """The same, with our tables in it."""
    make_tables(mariadb_empty)
    return mariadb_empty


@pytest.fixture
def start_mariadb(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartMariadb]:
    """Starts a server with our tables: ``start_mariadb(config=…)``."""
    with starting(Mariadb, tmp_path_factory) as start:
        yield start


@contextmanager
def starting(
    kind: type[Mariadb], factory: pytest.TempPathFactory
) -> Iterator[StartMariadb]:
    """The servers that are started meanwhile end with it."""
    servers: list[Mariadb] = []

    def start(*, config: dict[str, str] | None = None) -> Mariadb:
        servers.append(kind(factory.mktemp(kind.scheme), config))
        run(servers[-1].root, "CREATE DATABASE app")
        make_tables(servers[-1].url)
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()
