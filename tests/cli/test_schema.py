"""`rwlock schema`: what it prints."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import pytest
from click.testing import CliRunner

from aiorwlock_remote import connect
from aiorwlock_remote.cli.group import rwlock
from tests.cli.fix_cli import environment, here

if TYPE_CHECKING:
    from pathlib import Path

STORES = "cassandra", "mariadb", "mysql", "oracle", "postgresql", "sqlite"


def said(*arguments: str) -> str:
    answer = CliRunner().invoke(rwlock, ["schema", "cassandra", *arguments])
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_alone_it_is_its_help() -> None:
    done = here(["schema"], environment())
    assert done.returncode == 0
    assert done.stderr == ""
    for store in STORES:
        assert f"\n  {store}" in done.stdout
    assert done.stdout == here(["schema", "--help"], environment()).stdout


def test_the_pair_is_the_key() -> None:
    cql = said()
    assert cql.startswith("CREATE TABLE IF NOT EXISTS mutex_locks (")
    assert "PRIMARY KEY ((resource_type, resource_id))" in cql
    assert cql.endswith(";\n")


def test_the_published_key() -> None:
    cql = said("--layout", "type", "--keyspace", "locks", "--table", "mine")
    assert cql.startswith("CREATE TABLE IF NOT EXISTS locks.mine (")
    assert "PRIMARY KEY (resource_type, resource_id)" in cql


def test_a_table_that_is_there() -> None:
    cql = said("--widen", "--keyspace", "locks")
    assert cql == (
        "ALTER TABLE locks.mutex_locks ADD (version uuid, record varchar,"
        " frame bigint);\n"
    )


@pytest.mark.parametrize("bad", [("--table", "a;b"), ("--keyspace", 'a"b')])
def test_names_that_cannot_stand_in_a_statement(bad: tuple[str, str]) -> None:
    answer = CliRunner().invoke(rwlock, ["schema", "cassandra", *bad])
    assert answer.exit_code != 0
    assert "CREATE" not in answer.output


def oracle(*arguments: str) -> str:
    answer = CliRunner().invoke(rwlock, ["schema", "oracle", *arguments])
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_the_tables_of_oracle() -> None:
    sql = oracle()
    assert sql.startswith("CREATE TABLE mutex_locks (")
    assert "CREATE TABLE doormans (" in sql
    assert "GRANT" not in sql


def test_the_least_rights() -> None:
    sql = oracle("--schema", "LOCKS", "--user", "APP")
    assert "CREATE TABLE LOCKS.doormans (" in sql
    assert sql.endswith(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON LOCKS.mutex_locks TO APP;\n"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON LOCKS.doormans TO APP;\n"
    )


def test_an_owner_that_cannot_stand_in_a_statement() -> None:
    answer = CliRunner().invoke(rwlock, ["schema", "oracle", "--schema", "a;b"])
    assert answer.exit_code != 0
    assert "CREATE" not in answer.output


@pytest.mark.parametrize(
    ("store", "collation"),
    [("mariadb", "utf8mb4_nopad_bin"), ("mysql", "utf8mb4_0900_bin")],
)
def test_the_tables_of_mariadb(store: str, collation: str) -> None:
    answer = CliRunner().invoke(
        rwlock, ["schema", store, "--database", "locks", "--user", "app"]
    )
    sql = answer.output
    assert sql.startswith("CREATE TABLE IF NOT EXISTS `locks`.mutex_locks (")
    assert sql.count(f"{collation};") == 2
    assert sql.endswith("ON `locks`.doormans TO `app`@`%`;\n")


async def use(url: str) -> None:
    async with connect(url) as locks, locks.mutex("order", 42):
        pass


def test_a_file_made_by_hand_is_one_made_by_connect(tmp_path: Path) -> None:
    """Whoever connects finds nothing to be made."""
    answer = CliRunner().invoke(rwlock, ["schema", "sqlite"])
    assert answer.exit_code == 0
    with closing(sqlite3.connect(tmp_path / "by hand.db")) as db:
        db.executescript(answer.output)
    shown = []
    for name in ("by hand.db", "by connect.db"):
        anyio.run(use, f"sqlite:///{tmp_path}/{name.replace(' ', '%20')}")
        with closing(sqlite3.connect(tmp_path / name)) as db:
            made = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name")
            shown.append((made.fetchall(), *db.execute("PRAGMA application_id")))
    assert shown[0] == shown[1]
    assert shown[0][0]


@pytest.mark.parametrize("store", ["mariadb", "mysql"])
@pytest.mark.parametrize("option", ["--database", "--user"])
def test_names_that_end_a_quote(store: str, option: str) -> None:
    answer = CliRunner().invoke(rwlock, ["schema", store, option, "a`b"])
    assert answer.exit_code != 0
    assert "CREATE" not in answer.output


@pytest.mark.parametrize("store", STORES)
def test_no_driver_is_needed(store: str) -> None:
    """Whoever makes the tables need not be who uses them."""
    drivers = ["asyncmy", "asyncpg", "cassandra", "oracledb", "redis"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({drivers}))\n"
        "from aiorwlock_remote.cli.main import main\n"
        f"sys.argv = ['rwlock', 'schema', {store!r}]\n"
        "main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("CREATE TABLE")
