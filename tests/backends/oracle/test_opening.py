"""What is looked at before the first lock: address, driver, server, rights, tables."""

from __future__ import annotations

import secrets
import subprocess
import sys

import oracledb
import pytest

from aiorwlock_remote import (
    BackendUnavailable,
    ConfigurationError,
    LockError,
    Unsupported,
    connect,
)
from aiorwlock_remote.backends.oracle import OracleBackend
from aiorwlock_remote.backends.oracle.driver import check_version
from aiorwlock_remote.backends.oracle.statements import statements_of
from tests.backends.oracle.programs import run
from tests.cas.tables import opened
from tests.servers.oracle.client import OracleDouble, OracleUser
from tests.servers.proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("asyncio does it")]


async def refused(url: str, timeout: float = 5.0) -> LockError:
    with pytest.raises(LockError) as caught:
        async with connect(url, connect_timeout=timeout):
            pass
    return caught.value


async def test_a_wrong_password(user: OracleUser) -> None:
    error = await refused(user.url.replace(user.password, "wrong"))
    assert isinstance(error, Unsupported)
    assert "ORA-01017" in str(error)
    assert "wrong" not in repr(error)


async def test_a_wrong_service(user: OracleUser) -> None:
    error = await refused(user.url.rpartition("/")[0] + "/NOPE")
    assert isinstance(error, Unsupported)
    assert "lsnrctl" in error.hint


@pytest.mark.parametrize("code", [28000, 28001])
async def test_an_account_that_may_not(user: OracleUser, code: int) -> None:
    user.account(code)
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert str(code) in str(error)


async def test_a_server_that_cannot_be_reached() -> None:
    error = await refused("oracle://u:p@127.0.0.1:1/X")
    assert isinstance(error, BackendUnavailable)
    assert error.nothing_done


async def test_a_silent_server(user: OracleUser) -> None:
    with Proxy(user.double.port) as proxy:
        proxy.black_hole(on=True)
        port = f":{user.double.port}/"
        url = user.url.replace(port, f":{proxy.port}/")
        assert isinstance(await refused(url, 0.5), BackendUnavailable)


@pytest.mark.parametrize("profile", ["11.2", "12.1"])
async def test_an_old_server(user: OracleUser, profile: str) -> None:
    error = await refused(user.at(profile).url)
    assert isinstance(error, Unsupported)
    assert "12.2" in str(error)


async def test_no_tables(oracle_user: OracleUser) -> None:
    error = await refused(oracle_user.url)
    assert isinstance(error, Unsupported)
    assert "rwlock schema oracle" in str(error)


async def test_a_published_table_with_padded_columns(oracle_user: OracleUser) -> None:
    run(
        oracle_user,
        "CREATE TABLE mutex_locks (resource_type CHAR(36) NOT NULL,"
        " resource_id INTEGER NOT NULL, ticket CHAR(9) NOT NULL,"
        " acquired_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,"
        " PRIMARY KEY (resource_type, resource_id))",
        list(statements_of())[1],
    )
    error = await refused(oracle_user.url)
    assert isinstance(error, ConfigurationError)
    assert "ALTER TABLE mutex_locks MODIFY (resource_type VARCHAR2" in error.hint


async def test_a_published_doorman_without_our_columns(user: OracleUser) -> None:
    run(user, "ALTER TABLE doormans DROP COLUMN record")
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert error.hint == "ALTER TABLE doormans ADD (record CLOB)"


async def test_a_column_of_another_type(user: OracleUser) -> None:
    run(user, "ALTER TABLE doormans DROP COLUMN record")
    run(user, "ALTER TABLE doormans ADD (record VARCHAR2(4000))")
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert "record is VARCHAR2, not CLOB" in str(error)


@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [
        # Each session reads its own time: of another zone, another seat and fence.
        ("mutex_locks", "acquired_at", "TIMESTAMP WITH TIME ZONE"),
        ("doormans", "created_at", "TIMESTAMP WITH TIME ZONE"),
        # What is stored is not what its writer counts fences from.
        ("doormans", "created_at", "TIMESTAMP(3)"),
    ],
)
async def test_a_time_that_is_not_what_was_written(
    user: OracleUser, table: str, column: str, kind: str
) -> None:
    run(user, f"ALTER TABLE {table} DROP COLUMN {column}")
    run(user, f"ALTER TABLE {table} ADD ({column} {kind} NOT NULL)")
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert f"{table}.{column} is TIMESTAMP(" in str(error)
    assert "not TIMESTAMP(6)" in str(error)


async def test_another_users_tables(
    user: OracleUser, oracle_double: OracleDouble
) -> None:
    """The least rights do, and without one of them it is said at once."""
    with oracle_double.user(f"t_{secrets.token_hex(6)}") as app:
        url = f"{app.at('19c').url}?schema={user.name}"
        grants = list(statements_of(user.name, app.name))[2:]
        run(user, grants[0])
        error = await refused(url)
        assert isinstance(error, Unsupported)
        run(user, grants[1])
        async with connect(url) as locks, locks.mutex("order", 42):
            assert len(run(user, "SELECT ticket FROM mutex_locks")) == 1
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            for table in ("mutex_locks", "doormans"):
                if (right, table) == ("DELETE", "doormans"):
                    continue  # which only forgetting needs
                run(user, f"REVOKE {right} ON {table} FROM {app.name}")
                error = await refused(url)
                assert isinstance(error, Unsupported), (right, table)
                assert "grants" in error.hint
                run(user, f"GRANT {right} ON {table} TO {app.name}")
        async with connect(url):
            pass


async def test_opening_writes_nothing(user: OracleUser) -> None:
    async with connect(user.url):
        pass
    assert run(user, "SELECT resource_type FROM doormans") == []


async def test_the_report_of_doctor(user: OracleUser) -> None:
    async with opened(user.url) as store:
        found = {finding.name: finding async for finding in store.examine()}
    assert found["server"].value.startswith("Oracle Database 19")
    assert set(found) == {"server", "tables", "clock"}


@pytest.mark.parametrize(
    "url",
    [
        "oracle://host/service",
        "oracle://u@host/service",
        "oracle://u:p@host",
        "oracle://u:p@host/a b",
        "oracle://u:p@h1,h2/service",
        "oracle://u:p@host:0/service",
        "oracle://u:p@host/service?connections=0",
        "oracle://u:p@host/service?connections=many",
        "oracle://u:p@host/service?call_timeout=nan",
        "oracle://u:p@host/service?call_timeout=0",
        "oracle://u:p@host/service?schema=a;b",
        "oracle://u:p@host/service?unknown=1",
    ],
)
async def test_addresses_that_cannot_be_used(url: str) -> None:
    assert isinstance(await refused(url), ConfigurationError)


async def test_an_old_driver(user: OracleUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracledb, "__version__", "25.3.0")
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert "oracledb>=26" in error.hint


async def test_the_thick_mode(
    user: OracleUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracledb, "is_thin_mode", lambda: False)
    error = await refused(user.url)
    assert isinstance(error, Unsupported)
    assert "init_oracle_client" in error.hint


def test_an_object_that_is_no_pool_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="create_pool_async"):
        OracleBackend(object())  # type: ignore[arg-type]


def test_supported_versions() -> None:
    for fine in ("12.2.0.1.0", "19.3.0.0.0", "23.4.0.24.0"):
        check_version(fine, "db")
    for old in ("12.1.0.2.0", "11.2.0.4.0"):
        with pytest.raises(Unsupported):
            check_version(old, "db")


def test_printing_the_schema_needs_no_driver() -> None:
    program = (
        "import sys; sys.modules['oracledb'] = None\n"
        "from click.testing import CliRunner\n"
        "from aiorwlock_remote.cli.group import rwlock\n"
        "print(CliRunner().invoke(rwlock, ['schema', 'oracle']).output)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "CREATE TABLE doormans" in done.stdout
