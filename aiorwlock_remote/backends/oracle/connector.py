"""Connections: our own, or (``lent``) those of a user. All in one asyncio loop.

What python-oracledb 26.1 does when a call is interrupted, found by
``tests/backends/oracle/test_hazards.py``:

* The first cancellation of a call sends a break and waits for its answer, for ever if
  the server is silent; a second one leaves an answer behind that the next call gets.
  So no call of ours is cancelled, but one given up together with its connection.
* ``call_timeout`` is not used: with it the process dies (a segmentation fault) when an
  answer and the end of the connection come while the loop is busy. Instead the call is
  broken into after that time, and given up after twice that if the server is silent. A
  connection is not used again after that, nor after any other failure.
* ``pool.drop()`` of a connection whose call is under way blocks the loop, and so does
  ``pool.close(force=True)``. After ``terminate()`` the pool still counts it as busy,
  for good. So a connection of a pool is dropped when its call has ended, and terminated
  only if that never comes.
* ``terminate()`` under a call does not always end it. Over TLS the call waits for the
  peer's goodbye, half a minute at a silent server. And the process dies, as above, if a
  part of the answer has come that nobody has read yet. So a call of ours is a task,
  which can be waited for and given up: one timer that hangs up, as for the other
  databases, will not do.
* While logging in there is no time limit at all: there is one of ours.

Connections that a user lends us; see ``lines`` for what they must be spared.

And making the tables over them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, TypeVar

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.driver import DRIVER, Connection, Error, Pool
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.backends.oracle.schema import statements_of
from aiorwlock_remote.cas.driver.external_pool import (
    ExternalPool,
    ExternalPoolWrapper,
    borrowing,
    engine_lender,
    is_engine,
    kind_of,
)
from aiorwlock_remote.cas.driver.pool import (
    CLOSE_TIMEOUT,
    ConnectionPool,
    ConnectionSource,
    ignore_result,
    in_time,
)
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError

CANCEL_GRACE = 0.1
"""Seconds for a call to end that has been cancelled."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OracleConnector:
    """python-oracledb, as ``ConnectionPool`` uses it."""

    options: Options
    trusts: ssl.SSLContext | None

    async def dial(self) -> Connection:
        """Log in."""
        options, tls = self.options, self.options.tls
        connection: Connection = await DRIVER.connect_async(
            user=options.username,
            password=options.password,
            host=options.host,
            port=options.port,
            protocol="tcp" if tls is None else "tcps",
            ssl_context=self.trusts,
            ssl_server_dn_match=tls is not None and tls.verify == "yes",
            service_name=options.service,
            tcp_connect_timeout=options.connect_timeout,
            retry_count=0,
        )
        return connection

    def healthy(self, connection: Connection) -> bool:
        """As the driver knows."""
        return connection.is_healthy()

    async def close(self, connection: Connection) -> None:
        """In order."""
        await connection.close()

    def abort(self, connection: Connection) -> None:
        """Without a word."""
        abort(connection)


def own_pool(options: Options, most: int) -> ConnectionPool[Connection]:
    """Our own, so many at most.

    Raises:
        ConfigurationError: a file of certificates or the key cannot be used.
    """
    dialling = OracleConnector(options, options.tls_context())
    return ConnectionPool(dialling, options.where, options.connect_timeout, most)


async def run_call(
    lines: ConnectionSource[Connection],
    work: Callable[[Connection], Awaitable[T]],
    options: Options,
    *,
    known: bool = False,
) -> T:
    """What ``work`` makes of a connection; it is a task of its own.

    ``known``: see ``errors.of_connecting``.

    Raises:
        BackendError, ConfigurationError: there is no connection, or it did not end in
            time; else what it raises.
    """
    try:
        connection = await lines.take()
    except (Error, OSError) as exc:
        raise errors.from_connecting(exc, options.where, known=known) from exc
    working = asyncio.ensure_future(_awaited(work, connection))
    try:
        ended = await in_time(working, options.call_timeout)
        if not ended:
            with suppress(Error):  # so that the server stops waiting, too
                connection.cancel()
            ended = await in_time(working, options.call_timeout + CLOSE_TIMEOUT)
    except BaseException:  # the loop is about to end
        working.add_done_callback(ignore_result)
        lines.abandon(connection)
        raise
    if not ended:
        working.add_done_callback(ignore_result)
        for _ in range(2):  # the first one waits for the server, the second does not
            working.cancel()
            ended = await in_time(working, CANCEL_GRACE)
        if ended:
            await lines.drop(connection)
        else:
            lines.abandon(connection)
        raise BackendUnavailable(what=f"{options.where} does not answer")
    error = working.exception()
    if error is not None:
        await lines.drop(connection)
        raise error
    await lines.give_back(connection)
    return working.result()


async def _awaited(work: Callable[[Connection], Awaitable[T]], on: Connection) -> T:
    return await work(on)


def abort(connection: Connection) -> None:
    """Without a word."""
    with suppress(Error):  # gone before
        connection.terminate()


WHERE = "the pool"


class OracledbPool:
    """python-oracledb's own."""

    def __init__(self, pool: Pool) -> None:
        """It is never closed or changed."""
        self._pool = pool

    @property
    def most(self) -> int | None:
        """What the pool was made with."""
        return self._pool.max

    async def borrow(self) -> Connection:
        """What the pool gives."""
        connection: Connection = await self._pool.acquire()
        return connection

    async def give_back(self, connection: Connection) -> None:
        """At once."""
        await self._pool.release(connection)

    async def drop(self, connection: Connection) -> None:
        """The pool opens another one when it needs to."""
        with suppress(Error):
            await self._pool.drop(connection)

    def abandon(self, connection: Connection) -> None:
        """The pool goes on counting it as busy."""
        abort(connection)

    async def settle(self) -> None:
        """They are there already."""


class UntimedPool(ExternalPoolWrapper[Connection]):
    """``call_timeout`` is ours while we use them: 0, see ``lines``."""

    def __init__(self, lender: ExternalPool[Connection]) -> None:
        """Whatever it lends."""
        super().__init__(lender)
        self._theirs: dict[Connection, int] = {}

    async def borrow(self) -> Connection:
        """With no time limit of its own."""
        connection = await self._lender.borrow()
        self._theirs[connection] = connection.call_timeout
        connection.call_timeout = 0
        return connection

    async def give_back(self, connection: Connection) -> None:
        """As it was."""
        connection.call_timeout = self._theirs.pop(connection)
        await self._lender.give_back(connection)

    async def drop(self, connection: Connection) -> None:
        """Nobody uses it again."""
        del self._theirs[connection]
        await self._lender.drop(connection)

    def abandon(self, connection: Connection) -> None:
        """Nobody uses it again."""
        del self._theirs[connection]
        self._lender.abandon(connection)


def external_pool_for(given: object) -> ExternalPool[Connection]:
    """What lends connections of this pool or engine.

    Raises:
        ConfigurationError: it is neither, or not for asyncio.
    """
    if _is_pool(given):
        return UntimedPool(OracledbPool(given))
    if is_engine(given) and given.dialect.driver == "oracledb":
        meant = partial(errors.from_connecting, where=WHERE, known=False)
        return UntimedPool(engine_lender(given, abort, meant))
    raise ConfigurationError(
        what=f"{kind_of(given)} is not an asyncio pool of python-oracledb",
        hint="OracleBackend(oracledb.create_pool_async(…)), or SQLAlchemy's "
        "create_async_engine('oracle+oracledb://…')",
    )


async def create_tables(lender: ExternalPool[Connection], options: Options) -> None:
    """Both; one that is there stays as it is.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    try:
        async with borrowing(lender, options) as lines:
            for statement in statements_of(options.schema):
                work = partial(_run_ddl, statement)
                # No call of ours is cancelled: see ``lines``.
                await asyncio.shield(run_call(lines, work, options))
    except (Error, OSError) as exc:
        raise errors.from_driver(exc, options.where) from exc


async def _run_ddl(statement: str, connection: Connection) -> None:
    try:
        with connection.cursor() as cursor:
            await cursor.execute(statement, {})
    except Error as exc:
        if errors.code_of(exc) != errors.THERE_ALREADY:
            raise


def _is_pool(given: object) -> TypeGuard[Pool]:
    return isinstance(given, DRIVER.AsyncConnectionPool)
