"""Pools as users make them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncmy

from aiorwlock_remote.backends.mariadb import AsyncmyBackend
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.core.url import parse
from tests.backends.mariadb.products import product_of

STRICT = "SET SESSION sql_mode = 'STRICT_ALL_TABLES'"
FOUND_ROWS = 2
"""The flag of clients that count rows found, not rows changed."""


@asynccontextmanager
async def pool_of(
    url: str,
    *,
    most: int = 4,
    database: str | None = None,
    patience: float = 2,
    **more: Any,  # noqa: ANN401 - of asyncmy.connect
) -> AsyncIterator[AsyncmyBackend]:
    """Autocommit is off, as is usual with this driver."""
    options = options_of(parse(url))
    pool = await asyncmy.create_pool(
        host=options.host,
        port=options.port,
        user=options.username,
        db=options.database if database is None else None,
        minsize=0,
        maxsize=most,
        **{"init_command": STRICT, **more},
    )
    try:
        backend = product_of(url).backend
        yield backend(pool, database=database or "", call_timeout=patience)
    finally:
        pool.close()
        await asyncio.wait_for(pool.wait_closed(), 30)
