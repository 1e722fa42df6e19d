"""A lock around a transaction of SQLAlchemy's ``AsyncSession``.

::

    async with locked_transaction(session, locks.mutex("account", 7)):
        account = await session.get_one(Account, 7)
        account.total += 1
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from sqlalchemy.ext.asyncio import AsyncSession

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.held import Held

__all__ = ["locked_transaction"]

ROLLBACK_TIMEOUT = 5.0
"""Seconds that a rollback may take after its task was cancelled."""


@asynccontextmanager
async def locked_transaction(
    session: AsyncSession, lock: AbstractAsyncContextManager[Held, Any]
) -> AsyncIterator[Held]:
    """Hold ``lock`` around one transaction of ``session``: the body of the block.

    The transaction begins behind the acquire, so that it reads what earlier holders
    have committed. It is committed before the release, or rolled back if the body fails
    or the lock is lost.

    Args:
        session: A session that is in no transaction.
        lock: ``locks.mutex(…)``, ``locks.rwlock(…).write``, or an ``acquire(…)``.

    Raises:
        ConfigurationError: the session is in a transaction, which may have read before
            the lock was acquired, and would not end with this block.
        LockError: as the lock raises it; nothing was committed if it is ``LockLost``
            before the commit was sent.
    """
    if session.in_transaction():
        raise ConfigurationError(
            what="the session is in a transaction, which began before the lock was "
            "acquired",
            hint="commit or roll back first; also a SELECT begins a transaction",
        )
    async with lock as held:
        _ = await session.begin()
        try:
            yield held
            held.check()
            await session.commit()
        except BaseException:
            # A loss has cancelled this task, and a rollback needs the database.
            with anyio.move_on_after(ROLLBACK_TIMEOUT, shield=True):
                await session.rollback()
            raise
