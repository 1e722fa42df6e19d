"""A row locked in a transaction of the user's, through whatever they have in hand."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiorwlock_remote.errors import BackendError, ConfigurationError

WHERE = "the transaction"


@dataclass(frozen=True)
class TransactionDriver:
    """How to a transaction of one driver.

    ``driver``: its name in URLs of SQLAlchemy, and ``dialects``. ``first``: the first
    row that a statement tells on a connection of the driver's, or None. ``meant``: the
    error for what the driver raised; ``hint``: how to begin a transaction.
    """

    connections: tuple[type[Any], ...]
    driver: str
    dialects: tuple[str, ...]
    first: Callable[..., Awaitable[object]]
    begun: Callable[[Any], bool]
    knows: Callable[[BaseException], bool]
    map_error: Callable[[BaseException, str], BackendError | ConfigurationError]
    hint: str


async def lock_row(
    way: TransactionDriver,
    transaction: object,
    *texts: str,
    values: tuple[object, ...] = (),
) -> None:
    """Run statements, the last of which locks a row, and see that it stays locked.

    Raises:
        ConfigurationError: as ``SupportsTransactions.join``.
        BackendError: as ``way.meant`` says.
    """
    try:
        if isinstance(transaction, way.connections):
            connection: Any = transaction
            seen = [await way.first(connection, text, *values) for text in texts]
        else:
            session = await _connection(way, transaction)
            asked = [await session.exec_driver_sql(text, values) for text in texts]
            seen = [answer.first() for answer in asked]
            connection = (await session.get_raw_connection()).driver_connection
    except Exception as exc:
        raise _meant(way, exc) from exc
    if None in seen:
        raise not_seen()
    if not way.begun(connection):
        raise ConfigurationError(
            what="no transaction has begun", hint=f"{way.hint}; no AUTOCOMMIT"
        )


def not_seen() -> ConfigurationError:
    """The transaction looks at what was there before the lock."""
    return ConfigurationError(
        what="the lock is not to be seen in the transaction",
        hint="the same database; READ COMMITTED, or the lock before all else",
    )


async def _connection(way: TransactionDriver, transaction: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's, an extra
    known: Any = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported by us
    connection = None
    if known is not None and isinstance(transaction, known.AsyncSession):
        connection = await transaction.connection()
    elif known is not None and isinstance(transaction, known.AsyncConnection):
        connection = transaction
    if (
        connection is None
        or connection.dialect.name not in way.dialects
        or connection.dialect.driver != way.driver
    ):
        over = f"{way.dialects[0]}+{way.driver}"
        raise ConfigurationError(
            what=f"{type(transaction).__qualname__} cannot be used as a transaction",
            hint=f"a connection of {way.driver}, or SQLAlchemy's over {over}",
        )
    return connection


def _meant(way: TransactionDriver, exc: Exception) -> BackendError | ConfigurationError:
    """SQLAlchemy wraps what the driver raises."""
    cause: BaseException | None = exc
    while cause is not None and not way.knows(cause):
        cause = cause.__cause__ or getattr(cause, "orig", None)
    return way.map_error(exc if cause is None else cause, WHERE)
