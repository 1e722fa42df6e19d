"""The databases of the tests: there for all workers, and they leave nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from types import ModuleType

import pytest

from tests.servers import mariadb, mysql, postgresql
from tests.servers.chosen import SERVERS
from tests.servers.mariadb import MariadbServer
from tests.servers.postgresql import PostgresqlServer
from tests.servers.process import IP, takes_connections, until
from tests.servers.shared import shared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "server_of"),
    [
        *((mariadb, MariadbServer), (mysql, MariadbServer)),
        (postgresql, PostgresqlServer),
    ],
    ids=["mariadb", "mysql", "postgresql"],
)
def test_a_shared_server_ends_with_its_last_user(
    kind: ModuleType,
    server_of: type[MariadbServer | PostgresqlServer],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shared"
    with shared(folder, kind.prepare, end=signal.SIGTERM) as facts:
        server = server_of(Path(facts["home"]), facts["port"])
        server.wait()
        with shared(folder, kind.prepare, end=signal.SIGTERM) as again:
            assert again == facts
        assert takes_connections(IP, server.port)
    until(lambda: not server.home.exists(), "its files are gone")
    assert not takes_connections(IP, server.port)


@pytest.mark.parametrize(
    ("kind", "package"),
    [(mariadb, "mariadb-server"), (postgresql, "postgresql")],
    ids=["mariadb", "postgresql"],
)
def test_a_missing_program_is_named(
    kind: ModuleType, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVERS, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kind, "_KEPT", type(kind._KEPT)(tmp_path))
    with pytest.raises(pytest.fail.Exception, match=f"apt-get install {package}"):
        kind.prepare(tmp_path)
