"""Leased rows over a user's engine or Django's connections: renewed, and let go."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiorwlock_remote.recipes import RowLock
from tests.backends.redis.connections import eventually
from tests.integrations.fix_alchemy_rows import AlchemySite
from tests.integrations.fix_django_rows import DjangoSite
from tests.recipes.row_sites import FREE, PATIENCE, opened
from tests.recipes.test_row_lock_leases import stored_grant

LEASE = 1.5
NAMES = ("alchemy_shop", "django_shop")

Site = AlchemySite | DjangoSite


@pytest.fixture(params=NAMES)
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    found.lease = LEASE
    return found


@asynccontextmanager
async def row_of(site: Site) -> AsyncIterator[RowLock]:
    async with opened(site) as lock_of:
        yield lock_of(1)


def keeper_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if "keeper" in one.name}


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.only_on("asyncio", "both know no other loop")
async def test_a_row_is_renewed_while_the_loop_runs(site: Site) -> None:
    async with row_of(site) as lock:
        async with lock.write() as held:
            first = stored_grant(site)

            def is_renewed() -> bool:
                return stored_grant(site).expires > first.expires + 2_000_000 * LEASE

            await eventually(is_renewed, "renewed")
            held.check()
        assert site.plain.state() == FREE


def test_a_body_that_fails_as_the_loop_ends(site: Site) -> None:
    """Its row is released before the loop has ended: nothing else would do that."""
    site.lease = None

    async def use() -> None:
        async with row_of(site) as lock, lock.write():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(use())
    assert site.plain.state() == FREE


def test_the_thread_ends_with_the_last_lock(site: Site) -> None:
    """Also if the loop has ended, as after each call of ``async_to_sync``."""
    before = keeper_threads()

    async def use() -> None:
        async with row_of(site) as lock, lock.write():
            assert keeper_threads() > before

    asyncio.run(use())
    last_chance = time.monotonic() + PATIENCE
    while keeper_threads() - before:
        assert time.monotonic() < last_chance, "the thread runs on"
        gc.collect()
        time.sleep(0.01)
