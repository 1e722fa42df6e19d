"""Transactions of the user's, over asyncmy."""

from __future__ import annotations

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.driver import CONNECTION, Connection, first
from aiorwlock_remote.swapping.joining import Way


def _begun(connection: Connection) -> bool:
    begun: bool = connection.get_transaction_status()
    return begun


ASYNCMY = Way(
    connections=(CONNECTION,),
    driver="asyncmy",
    dialects=("mariadb", "mysql"),
    first=first,
    begun=_begun,
    knows=lambda exc: bool(errors.code_of(exc)),
    meant=errors.of,
    hint="await connection.begin()",
)
