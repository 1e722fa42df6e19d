"""Requests over connections of our own or the user's. All in one asyncio loop.

No call of ours is ever cancelled, and each has a bounded wait: when it is over the
connection is hung up, which ends the call, and what became of it is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiorwlock_remote.cas.driver.pool import Lines
from aiorwlock_remote.errors import BackendError, BackendUnavailable, ConfigurationError
from aiorwlock_remote.swapping.deadlines import Deadlines
from aiorwlock_remote.swapping.lent_lines import Lender, Reach, lent

Failure = BackendError | ConfigurationError

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class Custom(Generic[C]):
    """How a driver's connections are, and end.

    ``healthy``: as far as is known without asking. ``hang_up``: at once; the call under
    way ends with an error. ``spoilt``: whether an error leaves a connection that is not
    to be used again. ``meant``: the error of ours for what was raised by a request;
    ``not_connected``: for what was raised before there was a connection.
    """

    healthy: Callable[[C], bool]
    hang_up: Callable[[C], object]
    spoilt: Callable[[BaseException], bool]
    meant: Callable[[BaseException, str], Failure]
    not_connected: Callable[[BaseException, str], Failure]


class Carrier(Generic[C]):
    """Each request has a connection for itself while it is carried."""

    def __init__(
        self, lines: Lines[C], custom: Custom[C], where: str, seconds: float
    ) -> None:
        """``where``: the server, for messages. ``seconds``: for a call, at most."""
        self._lines = lines
        self._custom = custom
        self._where = where
        self._deadlines = Deadlines(seconds, custom.hang_up)

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
            spoilt = custom.spoilt(exc)
            if spoilt and self._deadlines.missed(connection):
                what = f"{self._where} does not answer"
                raise BackendUnavailable(what=what) from exc
            raise custom.meant(exc, self._where) from exc
        except BaseException:  # the loop is about to end
            spoilt = True
            raise
        finally:
            self._deadlines.over(connection)
            if spoilt or not custom.healthy(connection):
                await self._lines.drop(connection)
            else:
                await self._lines.give_back(connection)


async def carried_in_turn(
    lender: Lender[C],
    reach: Reach,
    custom: Custom[C],
    works: Iterable[Callable[[C], Awaitable[object]]],
) -> None:
    """One after the other, over what a user lends. Cancelled, one under way goes on.

    Raises:
        BackendError, ConfigurationError: as ``Carrier.carry``.
    """
    async with lent(lender, reach) as lines:
        carrier = Carrier(lines, custom, reach.where, reach.call_timeout)
        for work in works:
            await asyncio.shield(carrier.carry(work))
