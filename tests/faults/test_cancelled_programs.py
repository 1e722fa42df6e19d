"""Programs that cancel every task of their loop, and go on using their locks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aiorwlock_remote import Locks, connect
from tests.cancelled_tasks import cancel_all_others
from tests.servers.store_url import OTHER_STORES, STORES, store_url

LEASE = 30.0
PATIENCE = 10.0
"""Seconds; well below the lease, which nothing may have to wait for."""
NAMES = 4
TASKS = 6 * NAMES
ROUNDS = 4


@pytest.fixture(params=[*STORES, *OTHER_STORES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [1, 4, 20])
def test_the_next_ones_get_in_and_nothing_is_left(
    url: str, turns: int, tmp_path: Path
) -> None:
    """``turns`` of the loop after they began; bodies release as they are cancelled."""

    async def program() -> None:
        kind = f"{tmp_path.name}-{turns}"
        async with connect(url, lease=LEASE) as locks:
            for _ in range(ROUNDS):
                tasks = [
                    asyncio.create_task(use(locks, kind, number % NAMES))
                    for number in range(TASKS)
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancel_all_others()
                assert all(task.done() for task in tasks)
            for number in range(NAMES):
                async with locks.mutex(kind, number).acquire(timeout=PATIENCE):
                    pass
            assert [seen async for seen in locks.list(kind)] == []

    asyncio.run(program())


async def use(locks: Locks, kind: str, number: int) -> None:
    async with locks.mutex(kind, number):
        await asyncio.sleep(60)
