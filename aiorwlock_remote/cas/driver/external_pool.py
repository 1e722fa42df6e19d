"""Use of a user's pool, SQLAlchemy engine or open transaction in place of a URL.

All objects belong to one asyncio loop. A user's pool or engine is never closed or
reconfigured.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeGuard, TypeVar

from aiorwlock_remote._util.driver_loop import check_asyncio
from aiorwlock_remote._util.private_parts import report_differing
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import (
    Driver,
    Failure,
    cancel_unwanted,
    in_time,
    none_free,
    spawn_detached,
)
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.cas.driver.store import TableStore

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

DEFAULT_REQUEST_CONNECTIONS = 8
"""Connections for requests if the size of the user's pool is not known."""
SECOND_SPARE_FROM = 5
"""Pools of this size or more leave two connections to renewals, smaller ones one."""
RETURN_TIMEOUT = 5.0
"""Seconds for a pool to take a connection back; then the connection is aborted."""
ABORT_GRACE = 1.0
"""Seconds for the pool to notice that a connection was aborted."""

C = TypeVar("C")


class ReturnMode(Enum):
    """How long a request waits for the user's pool to take its connection back."""

    AWAITED = "until it is back"
    BOUNDED = "until it is back, or ``RETURN_TIMEOUT`` is over"
    BACKGROUND = "not at all"


class ExternalPool(Protocol[C]):
    """Port: adapter that borrows connections from a user's pool or engine."""

    @property
    def return_mode(self) -> ReturnMode:
        """How long a request waits while the pool takes its connection back."""

    @property
    def most(self) -> int | None:
        """Most connections that can be borrowed at the same time; None if not known."""

    async def borrow(self) -> C:
        """Take a connection for the caller's sole use, or raise the pool's error."""

    async def give_back(self, connection: C) -> None: ...

    async def drop(self, connection: C) -> None:
        """Remove a connection from the pool for good, after its call has ended."""

    def abandon(self, connection: C) -> None:
        """Abort a connection whose call hangs; the pool forgets it. Does not wait."""


class BorrowedConnections(Generic[C]):
    """Source of connections that are borrowed from a user's pool or engine."""

    def __init__(self, pool: ExternalPool[C], driver: Driver[C]) -> None:
        # A batch of requests gets one connection: the others are for the user's code.
        self.at_once: int = 1
        self._pool = pool
        self._driver = driver
        self._where = driver.options.where
        self._timeout = driver.options.connect_timeout
        self._used = 0
        self._closed = False
        self._idle: asyncio.Event | None = None
        self._returns: set[asyncio.Future[None]] = set()

    async def take(self) -> C:
        if self._closed:
            raise BackendUnavailable(what="the store is closed", nothing_done=True)
        # Counted before the first await: ``close`` also waits for a connection that is
        # just being borrowed.
        self._used += 1
        try:
            # SQLAlchemy also lends connections that the server has closed.
            while not self._driver.is_healthy(connection := await self._borrow()):
                self._pool.abandon(connection)
            try:
                self._driver.borrowed(connection)
            except ConfigurationError:
                await self._return(connection)
                raise
        except BaseException:
            self._count_return()
            raise
        return connection

    async def give_back(self, connection: C) -> None:
        if not self._driver.is_healthy(connection):
            await self.drop(connection)  # not every pool would notice
            return
        with self._returning(connection, usable=True):
            mode = self._pool.return_mode
            if mode is ReturnMode.AWAITED:
                await self._pool.give_back(connection)
                return
            # A pool or an engine resets what comes back, with most drivers by a request
            # more. That request must neither delay nor change the answer of the request
            # before (test_pool.py).
            returning = asyncio.ensure_future(self._return(connection))
            self._returns.add(returning)
            returning.add_done_callback(self._returns.discard)
            if mode is ReturnMode.BOUNDED:
                await asyncio.wait({returning})

    async def drop(self, connection: C) -> None:
        with self._returning(connection):
            await self._pool.drop(connection)

    def abandon(self, connection: C) -> None:
        log_event(log, "borrowed_connection_lost", server=self._where)
        with self._returning(connection):
            self._pool.abandon(connection)

    async def close(self) -> None:
        """Wait until all connections are back, so that the user may close the pool."""
        self._closed = True
        while self._used:
            self._idle = asyncio.Event()
            await self._idle.wait()
        if self._returns:
            await asyncio.wait(self._returns)

    def none_free(self) -> BackendUnavailable:
        return none_free(self._where, self._timeout)

    async def _borrow(self) -> C:
        borrowing = asyncio.ensure_future(self._pool.borrow())
        give_up = partial(cancel_unwanted, self._return_late)
        if not await in_time(borrowing, self._timeout, give_up):
            raise self.none_free()
        return borrowing.result()

    @contextmanager
    def _returning(self, connection: C, *, usable: bool = False) -> Iterator[None]:
        self._driver.returning(connection, usable=usable)
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - it is the pool's
            # The request was answered before, and stays so (test_pool.py).
            log_event(
                log, "connection_not_returned", server=self._where, error=str(exc)
            )
        finally:
            self._count_return()

    def _count_return(self) -> None:
        self._used -= 1
        if not self._used and self._idle is not None:
            self._idle.set()

    def _return_late(self, connection: C) -> None:
        spawn_detached(self._return(connection))

    async def _return(self, connection: C) -> None:
        returning = asyncio.ensure_future(self._pool.give_back(connection))
        returning.add_done_callback(_log_failed_return)
        if not await in_time(returning, RETURN_TIMEOUT):
            self._driver.abort(connection)
            await in_time(returning, ABORT_GRACE)


def _log_failed_return(returning: asyncio.Future[None]) -> None:
    if not returning.cancelled() and (error := returning.exception()) is not None:
        log_event(log, "connection_not_returned", exc_info=error)


class RequestConnections(Generic[C]):
    """Borrowed connections for all requests except renewals.

    A pool serves requests in their order. So some connections are kept for renewals;
    else renewals would queue behind every acquire of this process that waits for a
    connection, and behind releases that wait for a locked row (``test_stuck_rows.py``).
    """

    def __init__(
        self, connections: BorrowedConnections[C], most: int | None, timeout: float
    ) -> None:
        """Reserve one of ``most`` connections for renewals, or two of five or more.

        The second is for renewals that wait for a locked row. ``most`` is None if not
        known. A request fails if none of the other connections becomes free within
        ``timeout`` seconds.
        """
        if most is None:
            self._free = DEFAULT_REQUEST_CONNECTIONS
        else:
            self._free = max(1, most - (1 if most < SECOND_SPARE_FROM else 2))
        self.at_once: int = connections.at_once
        self._connections = connections
        self._timeout = timeout
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def take(self) -> C:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = None
            # In bounded time: the user's own code may hold all connections.
            if not await in_time(turn, self._timeout, self._leave):
                raise self._connections.none_free()
        try:
            return await self._connections.take()
        except BaseException:
            self._next()
            raise

    async def give_back(self, connection: C) -> None:
        self._next()
        await self._connections.give_back(connection)

    async def drop(self, connection: C) -> None:
        self._next()
        await self._connections.drop(connection)

    def abandon(self, connection: C) -> None:
        self._next()
        self._connections.abandon(connection)

    async def close(self) -> None:
        await self._connections.close()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        self._waiting.pop(turn, None)
        if turn.done():  # this task was cancelled in the moment in which its turn came
            self._next()

    def _next(self) -> None:
        turn = next(iter(self._waiting), None)
        if turn is None:
            self._free += 1
        else:
            del self._waiting[turn]
            turn.set_result(None)


class SaEngine(Protocol):
    """The part of SQLAlchemy's ``AsyncEngine`` that this package uses."""

    dialect: Any
    pool: Any

    def connect(self) -> Any:  # noqa: ANN401 - an ``AsyncConnection``, awaited
        ...


class SaEnginePool(Generic[C]):
    """Adapter that borrows raw driver connections from a SQLAlchemy ``AsyncEngine``."""

    def __init__(self, engine: SaEngine, driver: Driver[C], *, resets: bool) -> None:
        self.return_mode = ReturnMode.BACKGROUND if resets else ReturnMode.BOUNDED
        self._engine = engine
        self._driver = driver
        self._lent: dict[C, Any] = {}

    @property
    def most(self) -> int | None:
        return limit_of(self._engine.pool)

    async def borrow(self) -> C:
        from sqlalchemy import exc as sa  # noqa: PLC0415 - there is an engine of it

        try:
            lent = await self._engine.connect()
            connection: C = (await lent.get_raw_connection()).driver_connection
        except sa.TimeoutError as exc:
            raise BackendUnavailable(
                what="the pool: no connection was free", nothing_done=True
            ) from exc
        except sa.SQLAlchemyError as exc:
            error = getattr(exc, "orig", None) or exc
            # Its dialect of asyncpg raises exceptions of its own from the driver's.
            if type(error).__module__.startswith("sqlalchemy."):
                error = error.__cause__ or error
            raise self._driver.map_connect_error(error) from exc
        # SQLAlchemy gives its own object back to the pool, not the driver's.
        self._lent[connection] = lent
        return connection

    async def give_back(self, connection: C) -> None:
        await self._lent.pop(connection).close()

    async def drop(self, connection: C) -> None:
        self.abandon(connection)

    def abandon(self, connection: C) -> None:
        # The engine forgets the connection and opens another when it needs to.
        self._lent.pop(connection).sync_connection.detach()
        self._driver.abort(connection)


def limit_of(pool: Any) -> int | None:  # noqa: ANN401 - SQLAlchemy's, an extra
    """Return the most connections of a SQLAlchemy pool; None if it has no limit."""
    # Only ``QueuePool`` and its kin have one, and a size of 0 is none. What they open
    # beyond their size is private.
    from sqlalchemy.pool import QueuePool  # noqa: PLC0415 - there is an engine of it

    if not isinstance(pool, QueuePool):
        return None
    size = pool.size()
    more: object = getattr(pool, "_max_overflow", None)
    if not isinstance(more, int):
        # Not ``None``: more requests than connections would keep renewals waiting.
        instead = "no more connections than the pool's size are borrowed at once"
        report_differing("sqlalchemy", "QueuePool._max_overflow", instead)
        return size or None
    return size + more if size and more >= 0 else None


def is_engine(given: object) -> TypeGuard[SaEngine]:
    """Return True if ``given`` is a SQLAlchemy ``AsyncEngine``, for any database."""
    loaded = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported for our sake
    return loaded is not None and isinstance(given, loaded.AsyncEngine)


def pool_over(
    given: object,
    driver: Driver[C],
    own_pool: tuple[type[Any], Callable[[Any], ExternalPool[C]]],
    *,
    engine_resets: bool = True,
) -> ExternalPool[C]:
    """Return an adapter that borrows connections from a user's pool or engine.

    Args:
        given: What the user passed to the backend.
        driver: The driver to which the connections must belong.
        own_pool: Class of the driver's pool, and the function that wraps such a pool.
        engine_resets: Whether a SQLAlchemy engine sends a request to the server when a
            connection is returned to it.

    Raises:
        ConfigurationError: ``given`` is no pool or engine, or is of another driver.
    """
    kind, lend = own_pool
    if isinstance(given, kind):
        return lend(given)
    if is_engine(given) and given.dialect.driver == driver.package:
        return SaEnginePool(given, driver, resets=engine_resets)
    if is_engine(given):
        found = f"an engine of {given.dialect.name}+{given.dialect.driver}"
    else:
        found = f"{type(given).__module__}.{type(given).__name__}"
    raise ConfigurationError(
        what=f"{found} is not an asyncio pool of {driver.package}, nor an async "
        "engine over it",
        hint=driver.pool_hint,
    )


class ExternalPoolBackend:
    """Base of the backends that take a pool or an engine in place of a URL."""

    def __init__(
        self,
        store: type[TableStore],
        options: ConnectionOptions,
        pool: object,
        tables: str,
    ) -> None:
        self._store = store
        self._driver = store.driver_type(options)
        self._pool = self._driver.lend(pool)
        self._tables = tables

    def __repr__(self) -> str:
        # Not the pool, whose ``repr`` may show a password.
        return f"<{type(self).__name__} of {self._tables}>"

    def open(
        self, event_loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> Awaitable[TableStore]:
        """Open the store over the pool. Called by ``connect``.

        Raises:
            ConfigurationError: The caller does not run in an asyncio loop.
        """
        check_asyncio(f"a pool of {self._driver.package}", self._store.scheme)
        timeout = settings.connect_timeout
        options = replace(self._driver.options, connect_timeout=timeout)
        driver = self._store.driver_type(options)
        return self._store.open(driver, self._pool, event_loop, wake, settings)

    async def create_schema(self) -> None:
        """Create both tables where they do not exist.

        Runs what ``rwlock schema`` prints for this store, without the grants; a table
        that exists stays as it is. Nothing else in this library changes a schema. If
        the caller is cancelled, the statement under way is still carried out.

        Raises:
            BackendError: The user lacks a right, or the server does not answer.
        """
        driver = self._driver
        source = BorrowedConnections(self._pool, driver)
        runner = driver.runner(source)
        try:
            for statement in driver.schema_statements():
                # A cancelled caller must not cut a statement off: its outcome would not
                # be known (test_making_the_tables_is_not_cut_off).
                running = runner.carry(partial(driver.execute, statement))
                await asyncio.shield(running)
        finally:
            await source.close()


@dataclass(frozen=True)
class TransactionDriver:
    """Value object: how to lock a row in a user's open transaction, for one driver.

    Args:
        connections: The driver's classes of connections.
        package: Name of the driver in URLs of SQLAlchemy.
        dialects: Names of SQLAlchemy's dialects for the database.
        first_row: Awaited with a connection, a statement and its values; returns the
            first row or None.
        in_transaction: Returns True if a transaction is open on a connection.
        is_own: Returns True if an exception is the driver's.
        map_error: Called with the driver's exception and the server's name for the
            message; returns this library's error.
        begin_hint: Code that begins a transaction, for error messages.
    """

    connections: tuple[type[Any], ...]
    package: str
    dialects: tuple[str, ...]
    first_row: Callable[..., Awaitable[object]]
    in_transaction: Callable[[Any], bool]
    is_own: Callable[[BaseException], bool]
    map_error: Callable[[BaseException, str], Failure]
    begin_hint: str


async def lock_row(
    driver: TransactionDriver,
    transaction: object,
    *statements: str,
    values: tuple[object, ...] = (),
) -> None:
    """Lock a row by ``statements`` until the end of a user's open transaction.

    Args:
        driver: The driver to which the transaction must belong.
        transaction: A connection of the driver, or SQLAlchemy's session or connection.
        statements: SQL, of which each must return a row; the last one locks its row.
        values: Parameters, the same for each statement.

    Raises:
        ConfigurationError: This is no transaction of the driver, none has begun, or a
            statement returned no row.
        BackendError: A statement failed.
    """
    try:
        if isinstance(transaction, driver.connections):
            connection: Any = transaction
            rows = [await driver.first_row(connection, s, *values) for s in statements]
        else:
            session = await _sqlalchemy_connection(driver, transaction)
            found = [await session.exec_driver_sql(s, values) for s in statements]
            rows = [result.first() for result in found]
            connection = (await session.get_raw_connection()).driver_connection
    except Exception as exc:
        raise _map_transaction_error(driver, exc) from exc
    if None in rows:
        raise lock_not_visible()
    # With AUTOCOMMIT the row lock has ended with its statement.
    if not driver.in_transaction(connection):
        raise ConfigurationError(
            what="no transaction has begun", hint=f"{driver.begin_hint}; no AUTOCOMMIT"
        )


def lock_not_visible() -> ConfigurationError:
    """Return the error for a transaction that cannot see the row of the lock."""
    return ConfigurationError(
        what="the lock is not visible in the transaction",
        hint="the same database; READ COMMITTED, or the lock before all else",
    )


async def _sqlalchemy_connection(driver: TransactionDriver, transaction: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's, an extra
    known: Any = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported by us
    connection = None
    if known is not None and isinstance(transaction, known.AsyncSession):
        connection = await transaction.connection()
    elif known is not None and isinstance(transaction, known.AsyncConnection):
        connection = transaction
    if (
        connection is None
        or connection.dialect.name not in driver.dialects
        or connection.dialect.driver != driver.package
    ):
        over = f"{driver.dialects[0]}+{driver.package}"
        raise ConfigurationError(
            what=f"{type(transaction).__qualname__} is not a transaction of this store",
            hint=f"a connection of {driver.package}, or SQLAlchemy's over {over}",
        )
    return connection


def _map_transaction_error(driver: TransactionDriver, exc: Exception) -> Failure:
    # SQLAlchemy wraps what the driver raises.
    cause: BaseException | None = exc
    while cause is not None and not driver.is_own(cause):
        cause = cause.__cause__ or getattr(cause, "orig", None)
    return driver.map_error(exc if cause is None else cause, "the transaction")
