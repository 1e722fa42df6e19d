"""Fixtures: every store that objects can be occupied in, with nothing there yet."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.recipes.occupied_places import FolderPlace, Place, RedisPlace
from tests.servers.mariadb import MariadbServer
from tests.servers.postgresql import PostgresqlServer
from tests.servers.redis import RedisServer

if TYPE_CHECKING:
    from tests.recipes.occupied_tables import TablePlace

_SLOW = {"postgresql", "mariadb", "mysql"}
_ASYNCIO = pytest.mark.only_on("asyncio", "these libraries know no other loop")
PLACES = [
    "redis",
    "folder",
    *(
        pytest.param(
            f"{library}-{kind}",
            marks=[_ASYNCIO, pytest.mark.slow] if kind in _SLOW else [_ASYNCIO],
        )
        for library in ("sqlalchemy", "django")
        for kind in ("sqlite", "postgresql", "mariadb", "mysql")
    ),
]


@pytest.fixture(scope="session")
def occupied_mariadb(mariadb_server: MariadbServer) -> Iterator[str]:
    """The URL of a database of this worker's."""
    with mariadb_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


@pytest.fixture(scope="session")
def occupied_mysql(mysql_server: MariadbServer) -> Iterator[str]:
    """The URL of a database of this worker's."""
    with mysql_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


@pytest.fixture(scope="session")
def occupied_postgresql(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """The URL of a database of this worker's."""
    with postgresql_server.database(f"t_{secrets.token_hex(6)}") as url:
        yield url


MakePlace = Callable[[str, str], "TablePlace"]


@pytest.fixture
def occupied_table(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """A place by its library and its kind, with nothing in its table."""
    from tests.recipes.occupied_tables import KINDS  # noqa: PLC0415 - slow to import

    def made(library: str, kind: str) -> TablePlace:
        url = f"sqlite:///{tmp_path}/db.sqlite3"
        if kind != "sqlite":
            url = request.getfixturevalue(f"occupied_{kind}")
        place = KINDS[library](url)
        place.make()
        return place

    return made


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store that is empty."""
    name: str = request.param
    if name == "redis":
        server: RedisServer = request.getfixturevalue("fresh_redis")
        return RedisPlace(server.url)
    if name == "folder":
        return FolderPlace(str(tmp_path))
    library, _, kind = name.partition("-")
    made: MakePlace = request.getfixturevalue("occupied_table")
    return made(library, kind)
