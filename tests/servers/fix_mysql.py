"""Fixtures: databases at the shared MySQL, and servers to be stopped."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.fix_mariadb import StartMariadb, make_tables, starting
from tests.servers.mariadb import MariadbServer, run
from tests.servers.mysql import Mysql, prepare
from tests.servers.mysql_group import MysqlGroup
from tests.servers.shared import shared, shared_folder

StartGroup = Callable[..., MysqlGroup]


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """Shared by all workers: use a database of your own."""
    folder = shared_folder(tmp_path_factory, "shared-mysql")
    with shared(folder, prepare, end=signal.SIGTERM) as facts:
        server = MariadbServer(Path(facts["home"]), facts["port"], "MySQL")
        server.wait()
        yield server


@pytest.fixture
def mysql_empty(mysql_server: MariadbServer) -> Iterator[str]:
    """The URL of an empty database for this test."""
    with mysql_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


@pytest.fixture
def mysql_tables(mysql_empty: str) -> str:
    """The same, with our tables in it."""
    make_tables(mysql_empty)
    return mysql_empty


@pytest.fixture
def start_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartMariadb]:
    """Starts a server with our tables: ``start_mysql(config=…)``."""
    with starting(Mysql, tmp_path_factory) as start:
        yield start


@pytest.fixture
def start_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGroup]:
    """Starts a group with our tables: ``start_group(single=False)``."""
    groups: list[MysqlGroup] = []

    def start(*, single: bool = True) -> MysqlGroup:
        groups.append(MysqlGroup(tmp_path_factory.mktemp("group"), single=single))
        first, *_ = groups[-1].members
        run(first.root, "CREATE DATABASE app")
        make_tables(first.url)
        return groups[-1]

    try:
        yield start
    finally:
        for group in groups:
            group.close()
