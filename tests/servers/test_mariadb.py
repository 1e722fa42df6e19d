"""The MariaDB of the tests: it is there for all workers, and leaves nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.servers import mariadb
from tests.servers.mariadb import MariadbServer
from tests.servers.process import IP, takes_connections, until
from tests.servers.shared import shared

pytestmark = pytest.mark.slow


def test_it_ends_with_its_last_user(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with shared(folder, mariadb.prepare, end=signal.SIGTERM) as facts:
        server = MariadbServer(Path(facts["home"]), facts["port"])
        server.wait()
        with shared(folder, mariadb.prepare, end=signal.SIGTERM) as again:
            assert again == facts
        assert takes_connections(IP, server.port)
    until(lambda: not server.home.exists(), "its files are gone")
    assert not takes_connections(IP, server.port)


def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mariadb, "_KEPT", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="apt-get install mariadb-server"):
        mariadb.prepare(tmp_path)
