"""Requests over connections of our own or the user's. All in one asyncio loop.

No call of ours is ever cancelled, and each has a bounded wait: when it is over the
connection is terminated, which ends the call, and what became of it is not known.
asyncpg's own way, a request to cancel over a second connection, may not be heard by a
silent server either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.dialling import terminate
from aiorwlock_remote.backends.postgresql.driver import Connection
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
)

T = TypeVar("T")


class Source(Protocol):
    """Where connections come from."""

    async def take(self) -> Connection:
        """One that nobody else uses; in ``connect_timeout``.

        Raises:
            BackendError, ConfigurationError: nothing was asked.
        """

    async def give_back(self, connection: Connection) -> None:
        """It has answered."""

    async def drop(self, connection: Connection) -> None:
        """It is not to be used again; perhaps it is terminated."""

    async def close(self) -> None:
        """Close what is ours; nobody uses it any more."""

    def hang_up(self) -> None:
        """Close what is ours without a word."""


class Lines:
    """Requests over the connections of a source."""

    def __init__(self, source: Source, options: Options) -> None:
        """``source``: of the loop in which ``carry`` is called."""
        self._source = source
        self._options = options

    async def carry(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """What ``work`` makes of a connection.

        Raises:
            BackendError, ConfigurationError: as ``errors`` says.
        """
        connection = await self._source.take()
        loop, spoilt = asyncio.get_running_loop(), False
        timer = loop.call_later(self._options.call_timeout, terminate, connection)
        try:
            return await work(connection)
        except Exception as exc:
            spoilt = errors.spoilt(exc)
            if spoilt and loop.time() >= timer.when():
                what = f"{self._options.where} does not answer"
                raise BackendUnavailable(what=what) from exc
            raise errors.of(exc, self._options.where) from exc
        except BaseException:  # the loop is about to end
            spoilt = True
            raise
        finally:
            timer.cancel()
            if spoilt or connection.is_closed():
                await self._source.drop(connection)
            else:
                await self._source.give_back(connection)

    async def connect(self) -> None:
        """Open one; a failure is left to the first request."""
        with suppress(BackendError, ConfigurationError):
            await self.carry(_nothing)

    async def close(self) -> None:
        """Close what is ours; nobody uses it any more."""
        await self._source.close()

    def hang_up(self) -> None:
        """Close what is ours without a word."""
        self._source.hang_up()


async def _nothing(_: Connection) -> None:
    return
