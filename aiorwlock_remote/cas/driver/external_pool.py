"""Connections that a user lends us: of a driver's pool, or of an engine over it.

All in one asyncio loop. Neither a pool nor an engine is ever closed or changed.

Giving back what was lent, which asks the server something with most drivers.

A pool or an engine resets what it gets back: a request more. It is none of whoever had
the connection: it must neither hold up nor change what it was told before.

A user's SQLAlchemy engine, whose connections are the driver's beneath.

A row locked in a transaction of the user's, through whatever they have in hand.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from aiorwlock_remote.cas.driver.pool import in_time, none_free, spawn_detached
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

DEFAULT_REQUEST_CONNECTIONS = 8
"""Connections for requests if the lender does not tell how many it has."""
SECOND_SPARE_FROM = 5
"""Connections from which on renewals that wait for locked rows have one more."""

C = TypeVar("C")


class ExternalPool(Protocol[C]):
    """What connections are taken from."""

    @property
    def most(self) -> int | None:
        """How many it lends at the same time at most; None: it does not tell."""

    async def borrow(self) -> C:
        """One that nobody else uses.

        Raises:
            BackendError, ConfigurationError: as ``errors`` says; or the driver's.
        """

    async def give_back(self, connection: C) -> None:
        """To be used again."""

    async def drop(self, connection: C) -> None:
        """Not to be used again; its call has ended."""

    def abandon(self, connection: C) -> None:
        """Not to be used again; its call does not end."""

    async def settle(self) -> None:
        """Until all that was given back has arrived."""


class ExternalPoolWrapper(Generic[C]):
    """A lender that does nothing of its own, to be refined."""

    def __init__(self, lender: ExternalPool[C]) -> None:
        """Whatever it lends."""
        self._lender = lender

    @property
    def most(self) -> int | None:
        """As ``ExternalPool.most``."""
        return self._lender.most

    async def borrow(self) -> C:
        """As ``ExternalPool.borrow``."""
        return await self._lender.borrow()

    async def give_back(self, connection: C) -> None:
        """To be used again."""
        await self._lender.give_back(connection)

    async def drop(self, connection: C) -> None:
        """Not to be used again; its call has ended."""
        await self._lender.drop(connection)

    def abandon(self, connection: C) -> None:
        """Not to be used again; its call does not end."""
        self._lender.abandon(connection)

    async def settle(self) -> None:
        """Until all that was given back has arrived."""
        await self._lender.settle()


class HealthCheckedPool(ExternalPoolWrapper[C]):
    """Lends none whose server has hung up meanwhile; engines do not look."""

    def __init__(self, lender: ExternalPool[C], healthy: Callable[[C], bool]) -> None:
        """``healthy``: as far as is known without asking."""
        super().__init__(lender)
        self._healthy = healthy

    async def borrow(self) -> C:
        """The next one that seems well."""
        while not self._healthy(connection := await self._lender.borrow()):
            self._lender.abandon(connection)
        return connection


class ConnectionOptions(Protocol):
    """The options of a backend, as far as connections need them."""

    @property
    def where(self) -> str:
        """The server, for messages."""

    @property
    def connect_timeout(self) -> float:
        """Seconds until a connection is there."""

    @property
    def call_timeout(self) -> float:
        """Seconds for a call, at most."""

    @property
    def connections(self) -> int:
        """As many of our own at most."""


class BorrowedConnections(Generic[C]):
    """One request at a time over each."""

    def __init__(
        self, lender: ExternalPool[C], where: str, connect_timeout: float
    ) -> None:
        """Of the running loop. ``where``: the server, for messages."""
        self.at_once: int = 1  # the others are for whoever lends them
        self._lender = lender
        self._where = where
        self._timeout = connect_timeout
        self._used = 0
        self._closed = False
        self._idle: asyncio.Event | None = None

    async def take(self) -> C:
        """What the lender gives.

        Raises:
            BackendUnavailable: none in ``connect_timeout`` seconds, or it is closed;
                else what the lender raises.
        """
        if self._closed:
            raise BackendUnavailable(what="the store is closed", nothing_done=True)
        self._used += 1
        borrowing = asyncio.ensure_future(self._lender.borrow())
        try:
            if await in_time(borrowing, self._timeout):
                return borrowing.result()
        except BaseException:
            self._left()
            raise
        borrowing.add_done_callback(self._unwanted)
        borrowing.cancel()
        self._left()
        raise self.none_free()

    def none_free(self) -> BackendUnavailable:
        """The error for a request that got no connection."""
        return none_free(self._where, self._timeout)

    async def give_back(self, connection: C) -> None:
        """Its request has been answered, and stays so if the lender fails."""
        with self._leaving():
            await self._lender.give_back(connection)

    async def drop(self, connection: C) -> None:
        """Its request has failed: another one is opened when it is needed."""
        with self._leaving():
            await self._lender.drop(connection)

    def abandon(self, connection: C) -> None:
        """Its request does not end."""
        log_event(log, "borrowed_connection_lost", server=self._where)
        self._lender.abandon(connection)
        self._left()

    async def close(self) -> None:
        """Wait for what is under way: then its owner may close it."""
        self._closed = True
        while self._used:
            self._idle = asyncio.Event()
            await self._idle.wait()
        await self._lender.settle()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - it is the lender's
            log_event(
                log, "connection_not_returned", server=self._where, error=str(exc)
            )
        finally:
            self._left()

    def _left(self) -> None:
        self._used -= 1
        if not self._used and self._idle is not None:
            self._idle.set()

    def _unwanted(self, borrowing: asyncio.Future[C]) -> None:
        if not borrowing.cancelled() and borrowing.exception() is None:
            spawn_detached(self._lender.give_back(borrowing.result()))


class RequestConnections(Generic[C]):
    """Lent connections for all requests but renewals, for which some are left over.

    A pool serves whoever asked first. Without this, renewals would queue behind every
    acquire of this process that waits for a connection, and behind releases that wait
    for a locked row (test_lent_lines.py).
    """

    def __init__(
        self, lines: BorrowedConnections[C], most: int, timeout: float
    ) -> None:
        """``most``: connections at the same time. ``timeout``: seconds for a turn."""
        self.at_once: int = lines.at_once
        self._lines = lines
        self._free = most
        self._timeout = timeout
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def take(self) -> C:
        """As ``BorrowedConnections.take``, in turn.

        Raises:
            BackendUnavailable: no turn in time; else as ``BorrowedConnections.take``.
        """
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = None
            if not await in_time(turn, self._timeout):
                del self._waiting[turn]
                raise self._lines.none_free()
        try:
            return await self._lines.take()
        except BaseException:
            self._next()
            raise

    async def give_back(self, connection: C) -> None:
        """As ``BorrowedConnections.give_back``."""
        self._next()
        await self._lines.give_back(connection)

    async def drop(self, connection: C) -> None:
        """As ``BorrowedConnections.drop``."""
        self._next()
        await self._lines.drop(connection)

    def abandon(self, connection: C) -> None:
        """As ``BorrowedConnections.abandon``."""
        self._next()
        self._lines.abandon(connection)

    async def close(self) -> None:
        """As ``BorrowedConnections.close``."""
        await self._lines.close()

    def _next(self) -> None:
        turn = next(iter(self._waiting), None)
        if turn is None:
            self._free += 1
        else:
            del self._waiting[turn]
            turn.set_result(None)


def request_connections(
    lines: BorrowedConnections[C], most: int | None, timeout: float
) -> RequestConnections[C]:
    """``lines`` for requests that leave connections to renewals.

    ``most``: how many there are, if that is known. From five on two are left: one for
    renewals that wait for a locked row.
    """
    if most is None:
        return RequestConnections(lines, DEFAULT_REQUEST_CONNECTIONS, timeout)
    left = 1 if most < SECOND_SPARE_FROM else 2
    return RequestConnections(lines, max(1, most - left), timeout)


@asynccontextmanager
async def borrowing(
    lender: ExternalPool[C], options: ConnectionOptions
) -> AsyncIterator[BorrowedConnections[C]]:
    """Over what it lends, in the running loop; in the end it has got all back."""
    lines = BorrowedConnections(lender, options.where, options.connect_timeout)
    try:
        yield lines
    finally:
        await lines.close()


RETURN_TIMEOUT = 5.0
"""Seconds for a connection to be taken back."""
ABORT_GRACE = 1.0
"""Seconds for its owner to find out that it is gone."""


class BackgroundReturnPool(ExternalPoolWrapper[C]):
    """Gives back soon, and hangs up what is not taken back in time."""

    def __init__(
        self,
        lender: ExternalPool[C],
        abort: Callable[[C], object],
        *,
        asks: bool = True,
    ) -> None:
        """``abort``: at once. ``asks``: whether the server is asked something.

        If not it is waited for, and the next request gets the same connection.
        """
        super().__init__(lender)
        self._hang_up = abort
        self._asks = asks
        self._returning: set[asyncio.Future[None]] = set()

    async def give_back(self, connection: C) -> None:
        """Never fails: that is written to the log."""
        returning = asyncio.ensure_future(self._return(connection))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        if not self._asks:
            await asyncio.wait({returning})

    async def settle(self) -> None:
        """Bounded."""
        if self._returning:
            await asyncio.wait(self._returning)
        await super().settle()

    async def _return(self, connection: C) -> None:
        closing = asyncio.ensure_future(super().give_back(connection))
        closing.add_done_callback(_log_failed_return)
        if not await in_time(closing, RETURN_TIMEOUT):
            self._hang_up(connection)
            await in_time(closing, ABORT_GRACE)


def _log_failed_return(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log_event(log, "connection_not_returned", exc_info=error)


class SaConnection(Protocol):
    """SQLAlchemy's ``AsyncConnection``. ``sync_connection``: what is beneath it."""

    sync_connection: Any

    async def get_raw_connection(self) -> Any:  # noqa: ANN401
        """It has the driver's as ``driver_connection``."""

    async def close(self) -> None:
        """Back to the engine's pool, which resets it."""


class SaEngine(Protocol):
    """SQLAlchemy's ``AsyncEngine``."""

    dialect: Any
    pool: Any

    def connect(self) -> Awaitable[SaConnection]:
        """A connection of its pool."""


class SaEnginePool(Generic[C]):
    """Lends the connections of an ``AsyncEngine``; never disposes of or changes it.

    Its pool rolls back what comes back: with most drivers a request more.
    """

    def __init__(
        self,
        engine: SaEngine,
        abort: Callable[[C], object],
        meant: Callable[[BaseException], Exception],
    ) -> None:
        """``abort``: at once. ``meant``: what an error of the driver's means."""
        self._engine = engine
        self._hang_up = abort
        self._meant = meant
        self._lent: dict[C, SaConnection] = {}

    @property
    def most(self) -> int | None:
        """Of the pools of SQLAlchemy only ``QueuePool`` and its kin have a limit."""
        pool = self._engine.pool
        more: int | None = getattr(pool, "_max_overflow", None)
        if more is None or more < 0:
            return None
        size: int = pool.size()
        return size + more if size else None

    async def borrow(self) -> C:
        """The driver's connection beneath one of the engine's."""
        from sqlalchemy import exc as theirs  # noqa: PLC0415 - whoever is here has it

        try:
            lent = await self._engine.connect()
            connection: C = (await lent.get_raw_connection()).driver_connection
        except theirs.TimeoutError as exc:
            raise BackendUnavailable(
                what="the pool: no connection was free", nothing_done=True
            ) from exc
        except theirs.SQLAlchemyError as exc:
            raise self._meant(getattr(exc, "orig", None) or exc) from exc
        self._lent[connection] = lent
        return connection

    async def give_back(self, connection: C) -> None:
        """The engine resets it."""
        await self._lent.pop(connection).close()

    async def drop(self, connection: C) -> None:
        """As ``abandon``."""
        self.abandon(connection)

    def abandon(self, connection: C) -> None:
        """The engine opens another one when it needs to."""
        self._lent.pop(connection).sync_connection.detach()
        self._hang_up(connection)

    async def settle(self) -> None:
        """They are there already."""


def engine_lender(
    engine: SaEngine,
    abort: Callable[[C], object],
    meant: Callable[[BaseException], Exception],
    *,
    asks: bool = True,
) -> ExternalPool[C]:
    """As ``SaEnginePool`` and ``BackgroundReturnPool``."""
    return BackgroundReturnPool(SaEnginePool(engine, abort, meant), abort, asks=asks)


def is_engine(given: object) -> TypeGuard[SaEngine]:
    """Whether it is an ``AsyncEngine``, of whatever database."""
    loaded = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported for our sake
    return loaded is not None and isinstance(given, loaded.AsyncEngine)


def kind_of(given: object) -> str:
    """What somebody gave us, for messages."""
    if is_engine(given):
        return f"an engine of {given.dialect.name}+{given.dialect.driver}"
    return f"{type(given).__module__}.{type(given).__name__}"


TRANSACTION = "the transaction"


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
            session = await _sqlalchemy_connection(way, transaction)
            asked = [await session.exec_driver_sql(text, values) for text in texts]
            seen = [answer.first() for answer in asked]
            connection = (await session.get_raw_connection()).driver_connection
    except Exception as exc:
        raise _map_transaction_error(way, exc) from exc
    if None in seen:
        raise lock_not_visible()
    if not way.begun(connection):
        raise ConfigurationError(
            what="no transaction has begun", hint=f"{way.hint}; no AUTOCOMMIT"
        )


def lock_not_visible() -> ConfigurationError:
    """The transaction looks at what was there before the lock."""
    return ConfigurationError(
        what="the lock is not to be seen in the transaction",
        hint="the same database; READ COMMITTED, or the lock before all else",
    )


async def _sqlalchemy_connection(way: TransactionDriver, transaction: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's, an extra
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


def _map_transaction_error(
    way: TransactionDriver, exc: Exception
) -> BackendError | ConfigurationError:
    """SQLAlchemy wraps what the driver raises."""
    cause: BaseException | None = exc
    while cause is not None and not way.knows(cause):
        cause = cause.__cause__ or getattr(cause, "orig", None)
    return way.map_error(exc if cause is None else cause, TRANSACTION)
