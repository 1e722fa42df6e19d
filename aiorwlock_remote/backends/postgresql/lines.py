"""Requests over connections of our own or the user's. All in one asyncio loop.

No call of ours is ever cancelled, and each has a bounded wait: when it is over the
connection is terminated, which ends the call, and what became of it is not known.
asyncpg's own way, a request to cancel over a second connection, may not be heard by a
silent server either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import Connection
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
)
from aiorwlock_remote.swapping.deadlines import Deadlines
from aiorwlock_remote.swapping.own_lines import Lines

T = TypeVar("T")


async def carried(
    lines: Lines[Connection],
    work: Callable[[Connection], Awaitable[T]],
    deadlines: Deadlines[Connection],
    where: str,
) -> T:
    """What ``work`` makes of a connection. ``where``: the server, for messages.

    Raises:
        BackendError, ConfigurationError: as ``errors`` says.
    """
    try:
        connection = await lines.take()
    except (BackendError, ConfigurationError):
        raise
    except Exception as exc:
        raise errors.of_connecting(exc, where) from exc
    spoilt = False
    deadlines.begin(connection)
    try:
        return await work(connection)
    except Exception as exc:
        spoilt = errors.spoilt(exc)
        if spoilt and deadlines.missed(connection):
            raise BackendUnavailable(what=f"{where} does not answer") from exc
        raise errors.of(exc, where) from exc
    except BaseException:  # the loop is about to end
        spoilt = True
        raise
    finally:
        deadlines.over(connection)
        if spoilt or connection.is_closed():
            await lines.drop(connection)
        else:
            await lines.give_back(connection)
