"""`rwlock schema`: what it prints."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from aiorwlock_remote.cli.group import rwlock


def said(*arguments: str) -> str:
    answer = CliRunner().invoke(rwlock, ["schema", "cassandra", *arguments])
    assert answer.exit_code == 0, answer.output
    return answer.output


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
