"""Another program at Oracle, by the driver's blocking side."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import oracledb

from tests.servers.oracle.client import OracleUser
from tests.servers.plain_seats import PlainSeats
from tests.servers.real_oracle import OracleDatabase


class PlainOracle(PlainSeats):
    """The published statements of a user."""

    bind = ":{}"
    taken = oracledb.IntegrityError  # ORA-00001

    def __init__(self, user: OracleUser | OracleDatabase, prefix: str) -> None:
        super().__init__(prefix)
        self._user = user

    def connected(self) -> AbstractContextManager[Any]:
        return oracledb.connect(**self._user.login)
