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
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.driver import DRIVER, Connection, Error
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.cas.driver.pool import (
    GOODBYE,
    ConnectionPool,
    ConnectionSource,
    ignore_result,
    in_time,
)
from aiorwlock_remote.errors import BackendUnavailable

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
        hung_up(connection)


def own_lines(options: Options, most: int) -> ConnectionPool[Connection]:
    """Our own, so many at most.

    Raises:
        ConfigurationError: a file of certificates or the key cannot be used.
    """
    dialling = OracleConnector(options, options.tls_context())
    return ConnectionPool(dialling, options.where, options.connect_timeout, most)


async def carried(
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
        raise errors.of_connecting(exc, options.where, known=known) from exc
    working = asyncio.ensure_future(_awaited(work, connection))
    try:
        ended = await in_time(working, options.call_timeout)
        if not ended:
            with suppress(Error):  # so that the server stops waiting, too
                connection.cancel()
            ended = await in_time(working, options.call_timeout + GOODBYE)
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


def hung_up(connection: Connection) -> None:
    """Without a word."""
    with suppress(Error):  # gone before
        connection.terminate()
