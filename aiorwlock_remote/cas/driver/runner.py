"""Requests over connections of our own or the user's. All in one asyncio loop.

No call of ours is ever cancelled, and each has a bounded wait: when it is over the
connection is hung up, which ends the call, and what became of it is not known.

One timer for all calls that may take as long.

One for each is dear: a loop keeps, in order, also those that were cancelled, until
their time has come or until they are most of what it keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiorwlock_remote.cas.driver.external_pool import (
    ConnectionOptions,
    ExternalPool,
    borrowing,
)
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError

C = TypeVar("C")


class CallTimeouts(Generic[C]):
    """Ends connections whose calls are not over in time. All in one asyncio loop."""

    def __init__(self, seconds: float, end: Callable[[C], object]) -> None:
        """``end``: called at once; it ends what is under way, too."""
        self._seconds = seconds
        self._end = end
        self._due: dict[C, float] = {}  # in order: all may take as long
        self._timed = False

    def begin(self, connection: C) -> None:
        """A call begins, the only one there."""
        loop = asyncio.get_running_loop()
        self._due[connection] = loop.time() + self._seconds
        self._time(loop)

    def missed(self, connection: C) -> bool:
        """Whether its call took too long."""
        return connection not in self._due

    def cancel(self, connection: C) -> None:
        """Its call is."""
        self._due.pop(connection, None)

    def _time(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that the first one is looked at when its time has come."""
        if self._due and not self._timed:
            self._timed = True
            loop.call_at(next(iter(self._due.values())), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed = False
        now = loop.time()
        late = next((at for at, due in self._due.items() if due <= now), None)
        if late is None:
            self._time(loop)
            return
        del self._due[late]
        self._time(loop)  # first: whatever comes of this one, others are looked at
        self._end(late)


Failure = BackendError | ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True)
class DriverHooks(Generic[C]):
    """How a driver's connections are, and end.

    ``healthy``: as far as is known without asking. ``abort``: at once; the call under
    way ends with an error. ``spoilt``: whether an error leaves a connection that is not
    to be used again. ``meant``: the error of ours for what was raised by a request;
    ``not_connected``: for what was raised before there was a connection.
    """

    is_healthy: Callable[[C], bool]
    abort: Callable[[C], object]
    is_broken: Callable[[BaseException], bool]
    map_error: Callable[[BaseException, str], Failure]
    not_connected: Callable[[BaseException, str], Failure]


class PooledRunner(Generic[C]):
    """Each request has a connection for itself while it is carried."""

    def __init__(
        self,
        lines: ConnectionSource[C],
        custom: DriverHooks[C],
        where: str,
        seconds: float,
    ) -> None:
        """``where``: the server, for messages. ``seconds``: for a call, at most."""
        self._lines = lines
        self._custom = custom
        self._where = where
        self._deadlines = CallTimeouts(seconds, custom.abort)

    async def carry(self, work: Callable[[C], Awaitable[T]]) -> T:
        """What ``work`` makes of a connection.

        Raises:
            BackendError, ConfigurationError: what the driver's errors mean.
        """
        custom, spoilt = self._custom, False
        try:
            connection = await self._lines.take()
        except (BackendError, ConfigurationError):
            raise
        except Exception as exc:
            raise custom.not_connected(exc, self._where) from exc
        self._deadlines.begin(connection)
        try:
            return await work(connection)
        except Exception as exc:
            spoilt = custom.is_broken(exc)
            if spoilt and self._deadlines.missed(connection):
                what = f"{self._where} does not answer"
                raise BackendUnavailable(what=what) from exc
            raise custom.map_error(exc, self._where) from exc
        except BaseException:  # the loop is about to end
            spoilt = True
            raise
        finally:
            self._deadlines.cancel(connection)
            if spoilt or not custom.is_healthy(connection):
                await self._lines.drop(connection)
            else:
                await self._lines.give_back(connection)


async def run_in_sequence(
    lender: ExternalPool[C],
    reach: ConnectionOptions,
    custom: DriverHooks[C],
    works: Iterable[Callable[[C], Awaitable[object]]],
) -> None:
    """One after the other, over what a user lends. Cancelled, one under way goes on.

    Raises:
        BackendError, ConfigurationError: as ``PooledRunner.carry``.
    """
    async with borrowing(lender, reach) as lines:
        carrier = PooledRunner(lines, custom, reach.where, reach.call_timeout)
        for work in works:
            await asyncio.shield(carrier.carry(work))
