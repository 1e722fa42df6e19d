"""Objects occupied by rows of one of your tables, through your own ``AsyncEngine``.

::

    engine = create_async_engine("postgresql+asyncpg://…")
    occupy = occupancy(engine, occupancy_table(metadata)).occupy

    async with occupy(book):  # a row that was loaded, or ("book", 42)
        ...

Needs asyncio, and SQLite, PostgreSQL, MariaDB or MySQL. Each step is one statement,
committed at once, over another connection than your session's: occupy before you begin
a transaction, and commit before you leave.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import NoInspectionAvailable, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstanceState
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement

from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.occupancy import ExpiryAges, object_name
from aiorwlock_remote.core.row_dialects import DIALECTS
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.integrations._occupancy import COLUMNS, WIDTH, RowsOccupancyStore
from aiorwlock_remote.integrations.sqlalchemy.engine import (
    check_pool,
    commit,
    committing,
    from_driver,
    table_of,
)
from aiorwlock_remote.recipes.occupancy import Occupancy
from aiorwlock_remote.runtime.event_loop import require_asyncio

T = TypeVar("T")


def occupancy_table(metadata: sa.MetaData, name: str = "occupancies") -> sa.Table:
    """Return a table for the records of who uses an object, added to ``metadata``.

    Its columns are ``object``, ``who``, ``status``, and ``since``: microseconds of Unix
    time by the database's clock. If another program leaves ``since`` NULL, the record's
    age counts from when this library first reads it.

    Raises:
        ConfigurationError: ``metadata`` is no MetaData, or ``name`` is empty.
    """
    given: tuple[object, object] = metadata, name or None
    if not isinstance(given[0], sa.MetaData) or not isinstance(given[1], str):
        raise ConfigurationError(what=f"no table of {metadata!r} named {name!r}")
    return sa.Table(
        name,
        metadata,
        sa.Column("object", sa.String(WIDTH), primary_key=True),
        sa.Column("who", sa.String(WIDTH), primary_key=True),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("since", sa.BigInteger, nullable=True),
    )


def occupancy(
    engine: AsyncEngine,
    table: sa.Table | type[Any],
    *,
    pending_age: float = 10.0,
    using_age: float | None = 600.0,
) -> Occupancy:
    """Return an ``Occupancy`` whose records are rows of a table; no I/O.

    All programs that occupy the same objects must use the same ages.

    Args:
        engine: The engine whose connections are used.
        table: The table, or the mapped class, that contains the records.
        pending_age: Seconds after which a record of an attempt counts as dead.
        using_age: Seconds without ``extend`` after which a record of use counts as
            dead; None: never.

    Raises:
        ConfigurationError: a column is missing, an age is not valid, or the engine is
            not supported.
    """
    ages = ExpiryAges(pending_age, using_age)
    store = TableOccupancyStore(engine, table_of(table), ages)
    return Occupancy(store, name_of=name_of, event_loop=require_asyncio)


def name_of(thing: object) -> tuple[str, ResourceId]:
    """Return table and primary key of a loaded row; return a (kind, id) pair as it is.

    Raises:
        ConfigurationError: the row has no primary key, or ``thing`` is no row or pair.
    """
    try:
        state: object = sa.inspect(thing)
    except NoInspectionAvailable:
        return object_name(thing)
    if not isinstance(state, InstanceState) or state.identity is None:
        raise ConfigurationError(
            what=f"{type(thing).__name__} has no primary key yet", hint="flush it first"
        )
    # The base class of a hierarchy: loaded as a subclass, a row is the same object
    # (test_a_row_is_named_by_its_table_and_key).
    mapper = cast("Any", state.mapper)  # pyright: ignore[reportUnknownMemberType]
    return str(mapper.base_mapper.local_table.fullname), ",".join(
        map(str, state.identity)
    )


class _Now(FunctionElement[int]):
    # An SQL function: microseconds of Unix time by the server's clock.

    inherit_cache = True
    type = sa.BigInteger()


@compiles(_Now)
def _now_sql(_: _Now, compiler: SQLCompiler, **_more: object) -> str:
    return DIALECTS[compiler.dialect.name].now


_SUPPORTED = ("sqlite", "postgresql", "mysql", "mariadb")


class TableOccupancyStore(RowsOccupancyStore):
    """Records of who uses which object, in a user's table; one statement per step."""

    def __init__(self, engine: AsyncEngine, table: sa.Table, ages: ExpiryAges) -> None:
        super().__init__(ages, _Now())
        given: object = engine
        dialect = engine.dialect.name if isinstance(given, AsyncEngine) else ""
        if dialect not in _SUPPORTED:
            raise ConfigurationError(
                what=f"objects cannot be occupied through {quoted(engine)}",
                hint=f"pass an AsyncEngine for {', '.join(_SUPPORTED)}",
            )
        check_pool(engine)
        for name in COLUMNS:
            if name not in table.c:
                kind = "BIGINT" if name == "since" else f"VARCHAR({WIDTH})"
                raise ConfigurationError(
                    what=f"the table {table.name} has no column {name}",
                    hint=f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}",
                )
        self._table = table
        self._engine = engine
        self._where = f"{dialect} table {table.name}"

    async def _insert(self, row: Mapping[str, object]) -> None:
        await self._change(sa.insert(self._table).values(row))

    async def _update(self, changes: Mapping[str, object], **row: object) -> bool:
        rows = sa.update(self._table).where(*self._equal(row))
        return await self._change(rows.values(changes))

    async def _delete(self, **row: object) -> bool:
        return await self._change(sa.delete(self._table).where(*self._equal(row)))

    async def _others(
        self, thing: str, who: str, status: str
    ) -> Sequence[tuple[str, int | None, int | None]]:
        name, since = self._table.c["who"], self._table.c["since"]
        same = self._equal({"object": thing, "status": status})
        look = sa.select(name, since, _Now() - since).where(*same, name != who)

        async def ask(connection: AsyncConnection) -> Sequence[Any]:
            return (await connection.execute(look)).all()

        return await self._with_connection(ask)

    def _equal(self, row: Mapping[str, object]) -> list[sa.ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in row.items()]

    async def _change(self, statement: sa.Insert | sa.Update | sa.Delete) -> bool:
        async def ask(connection: AsyncConnection) -> bool:
            result: sa.CursorResult[Any] = await connection.execute(statement)
            return result.rowcount > 0

        return await self._with_connection(ask)

    async def _with_connection(
        self, ask: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        asked = False
        try:
            async with committing(self._engine) as connection:
                asked = True
                result = await ask(connection)
                await commit(connection)
                return result
        # asyncpg raises OSError for a server that is not there, which SQLAlchemy does
        # not wrap (test_a_server_that_is_not_there).
        except (SQLAlchemyError, OSError) as exc:
            error = from_driver(exc, self._where, asked=asked)
            # A session of the user's may hold the pool's only connection
            # (test_a_session_that_holds_the_only_connection).
            if isinstance(exc, PoolTimeout):
                error.hint = "the engine's pool has no connection left for occupying"
            elif isinstance(error, Unsupported):
                made = str(CreateTable(self._table).compile(self._engine.sync_engine))
                error.hint = " ".join(made.split())
            raise error from exc
