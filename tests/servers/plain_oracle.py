"""The published statements of another program, by the driver's blocking side."""

from __future__ import annotations

from typing import Any

import oracledb

from aiorwlock_remote.testing.conformance import Foreigner, Name
from tests.servers.oracle.client import OracleUser
from tests.servers.real_oracle import OracleDatabase


class PlainOracle(Foreigner):
    """``INSERT`` and ``DELETE`` on ``mutex_locks``, one transaction each."""

    def __init__(self, user: OracleUser | OracleDatabase, prefix: str) -> None:
        self._user = user
        self._prefix = prefix

    def take(self, name: Name, ticket: str) -> bool:
        try:
            self._run(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES (:kind, :num, :ticket)",
                name,
                ticket=ticket,
            )
        except oracledb.IntegrityError:  # ORA-00001
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        changed, _ = self._run(
            "UPDATE mutex_locks SET ticket = :ticket"
            " WHERE resource_type = :kind AND resource_id = :num",
            name,
            ticket=ticket,
        )
        if not changed:
            assert self.take(name, ticket)

    def free(self, name: Name, ticket: str) -> bool:
        deleted, _ = self._run(
            "DELETE FROM mutex_locks"
            " WHERE resource_type = :kind AND resource_id = :num AND ticket = :ticket",
            name,
            ticket=ticket,
        )
        return deleted == 1

    def read(self, name: Name) -> str | None:
        _, row = self._run(
            "SELECT ticket FROM mutex_locks"
            " WHERE resource_type = :kind AND resource_id = :num",
            name,
        )
        return None if row is None else str(row[0])

    def _run(
        self, sql: str, name: Name, **values: str
    ) -> tuple[int, tuple[Any, ...] | None]:
        kind, number = name
        with oracledb.connect(**self._user.login) as connection:
            with connection.cursor() as cursor:
                binds: dict[str, Any] = {"kind": self._prefix + kind, "num": number}
                cursor.execute(sql, {**binds, **values})
                row = cursor.fetchone() if cursor.description else None
                changed = cursor.rowcount
            connection.commit()
        return changed, row
