"""Each test on both products, and certificates for servers that run as another user."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.mariadb.products import MARIADB_PRODUCT, MYSQL_PRODUCT, Product
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.fix_mariadb import StartMariadb
from tests.servers.mariadb import MariadbServer

ON_ASYNCIO = pytest.mark.only_on("asyncio", "MariaDB's statements and driver, on both")


@pytest.fixture(
    params=[MARIADB_PRODUCT, pytest.param(MYSQL_PRODUCT, marks=ON_ASYNCIO)], ids=str
)
def product(request: pytest.FixtureRequest) -> Product:
    """MariaDB, and MySQL."""
    found: Product = request.param
    return found


@pytest.fixture
def db_server(product: Product, request: pytest.FixtureRequest) -> MariadbServer:
    """Shared by all workers: use a database of your own."""
    server: MariadbServer = request.getfixturevalue(f"{product.scheme}_server")
    return server


@pytest.fixture
def db_empty(product: Product, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database for this test."""
    url: str = request.getfixturevalue(f"{product.scheme}_empty")
    return url


@pytest.fixture
def db_tables(product: Product, request: pytest.FixtureRequest) -> str:
    """The same, with our tables in it."""
    url: str = request.getfixturevalue(f"{product.scheme}_tables")
    return url


@pytest.fixture
def start_db(product: Product, request: pytest.FixtureRequest) -> StartMariadb:
    """Starts a server with our tables: ``start_db(config=…)``."""
    start: StartMariadb = request.getfixturevalue(f"start_{product.scheme}")
    return start


@pytest.fixture
def files() -> Iterator[Certificates]:
    """In a folder that the server's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="mariadb-tls-"))
    folder.chmod(0o755)
    certificates = make_certificates(folder)
    certificates.key.chmod(0o644)
    yield certificates
    shutil.rmtree(folder)


def speaking_tls(files: Certificates) -> dict[str, str]:
    """Settings of a server."""
    return {
        "ssl-ca": str(files.authority),
        "ssl-cert": str(files.certificate),
        "ssl-key": str(files.key),
    }
