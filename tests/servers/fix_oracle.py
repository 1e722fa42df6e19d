"""Fixtures: one PostgreSQL and one double of Oracle before it, for all workers."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.oracle.client import OracleDouble, OracleUser
from tests.servers.postgresql import PostgresqlServer
from tests.servers.postgresql import prepare as prepare_postgresql
from tests.servers.process import until
from tests.servers.shared import Facts, shared, shared_folder

ROOT = Path(__file__).parents[2]
STARTS_IN = 60.0


@pytest.fixture(scope="session")
def postgresql_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PostgresqlServer]:
    """Shared by all workers: use a schema of your own."""
    folder = shared_folder(tmp_path_factory, "shared-postgresql")
    with shared(folder, prepare_postgresql, end=signal.SIGTERM) as facts:
        server = PostgresqlServer(Path(facts["home"]), facts["port"])
        server.wait()
        yield server


@pytest.fixture(scope="session")
def oracle_double(
    tmp_path_factory: pytest.TempPathFactory, postgresql_server: PostgresqlServer
) -> Iterator[OracleDouble]:
    """Shared by all workers: use a user of your own (see ``oracle_user``)."""

    def prepare(folder: Path) -> tuple[list[str], Facts]:
        control = folder / "control"
        command = [
            *("env", f"PYTHONPATH={ROOT}", sys.executable),
            *("-m", "tests.servers.oracle", "--log", str(folder / "log")),
            *("--postgresql", postgresql_server.local, "--control", str(control)),
        ]
        return command, {"control": str(control)}

    folder = shared_folder(tmp_path_factory, "shared-oracle")
    with shared(folder, prepare) as facts:
        double = OracleDouble(Path(facts["control"]))
        try:
            until(double.ready, "the double of Oracle answers", STARTS_IN)
        except TimeoutError:
            pytest.fail(f"the double of Oracle: {(folder / 'log').read_text()}")
        yield double
        log = (folder / "log").read_text()
        assert "Traceback" not in log, f"the double of Oracle broke: {log[-4000:]}"


@pytest.fixture
def oracle_user(oracle_double: OracleDouble) -> Iterator[OracleUser]:
    """A user of the test's own with an empty schema, dropped afterwards."""
    with oracle_double.user(f"t_{secrets.token_hex(6)}") as user:
        yield user
