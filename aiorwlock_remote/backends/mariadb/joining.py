"""Transactions of the user's, over asyncmy."""

from __future__ import annotations

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.driver import CONNECTION, Connection, first
from aiorwlock_remote.cas.driver.transactions import TransactionDriver, not_seen
from aiorwlock_remote.errors import BackendError, ConfigurationError


def _begun(connection: Connection) -> bool:
    begun: bool = connection.get_transaction_status()
    return begun


def _meant(exc: BaseException, where: str) -> BackendError | ConfigurationError:
    # Where the server tells; older ones find no row.
    newer = errors.code_of(exc) == errors.CHANGED
    return not_seen() if newer else errors.from_driver(exc, where)


ASYNCMY = TransactionDriver(
    connections=(CONNECTION,),
    driver="asyncmy",
    dialects=("mariadb", "mysql"),
    first=first,
    begun=_begun,
    knows=lambda exc: bool(errors.code_of(exc)),
    map_error=_meant,
    hint="await connection.begin()",
)
