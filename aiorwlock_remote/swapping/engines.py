"""A user's SQLAlchemy engine, whose connections are the driver's beneath."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.swapping.lent_lines import Lender
from aiorwlock_remote.swapping.returning import Returning

C = TypeVar("C")


class Lent(Protocol):
    """SQLAlchemy's ``AsyncConnection``. ``sync_connection``: what is beneath it."""

    sync_connection: Any

    async def get_raw_connection(self) -> Any:  # noqa: ANN401
        """It has the driver's as ``driver_connection``."""

    async def close(self) -> None:
        """Back to the engine's pool, which resets it."""


class Engine(Protocol):
    """SQLAlchemy's ``AsyncEngine``."""

    dialect: Any
    pool: Any

    def connect(self) -> Awaitable[Lent]:
        """A connection of its pool."""


class EngineLender(Generic[C]):
    """Lends the connections of an ``AsyncEngine``; never disposes of or changes it.

    Its pool rolls back what comes back: with most drivers a request more.
    """

    def __init__(
        self,
        engine: Engine,
        hang_up: Callable[[C], object],
        meant: Callable[[BaseException], Exception],
    ) -> None:
        """``hang_up``: at once. ``meant``: what an error of the driver's means."""
        self._engine = engine
        self._hang_up = hang_up
        self._meant = meant
        self._lent: dict[C, Lent] = {}

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
    engine: Engine,
    hang_up: Callable[[C], object],
    meant: Callable[[BaseException], Exception],
    *,
    asks: bool = True,
) -> Lender[C]:
    """As ``EngineLender`` and ``Returning``."""
    return Returning(EngineLender(engine, hang_up, meant), hang_up, asks=asks)


def is_engine(given: object) -> TypeGuard[Engine]:
    """Whether it is an ``AsyncEngine``, of whatever database."""
    loaded = sys.modules.get("sqlalchemy.ext.asyncio")  # never imported for our sake
    return loaded is not None and isinstance(given, loaded.AsyncEngine)


def kind_of(given: object) -> str:
    """What somebody gave us, for messages."""
    if is_engine(given):
        return f"an engine of {given.dialect.name}+{given.dialect.driver}"
    return f"{type(given).__module__}.{type(given).__name__}"
