"""What other programs do with the tables, by the driver's blocking side."""

from __future__ import annotations

from typing import Any

import oracledb

from aiorwlock_remote.backends.oracle.statements import statements_of
from tests.servers.oracle.client import OracleUser


def make_tables(user: OracleUser) -> None:
    """As ``rwlock schema oracle`` prints them."""
    run(user, *statements_of())


def run(user: OracleUser, *statements: str, **binds: object) -> list[Any]:
    """One connection and transaction; what the last statement tells, if it does."""
    with oracledb.connect(**user.login) as connection:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, binds)
            rows = cursor.fetchall() if cursor.description else []
        connection.commit()
    return rows


def seats(user: OracleUser) -> list[Any]:
    """All of them: type, id, ticket."""
    return run(user, "SELECT resource_type, resource_id, ticket FROM mutex_locks")
