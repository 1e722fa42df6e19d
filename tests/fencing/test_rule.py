"""The one rule, in every kind of resource: lower is refused, on reads as on writes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import pytest_asyncio

from aiorwlock_remote import BadFence, StaleFence
from aiorwlock_remote.fencing.checks import MAX_FENCE
from tests.fencing.resources import KINDS, Cell

pytestmark = pytest.mark.asyncio

BASE = 1_795_000_000_000_000
"""Fences look like this: microseconds since 1970."""


#: Their servers take seconds to start.
SLOW = ("postgresql", "mariadb", "mysql", "cassandra")


@pytest_asyncio.fixture(
    params=[
        pytest.param(
            kind, marks=[pytest.mark.slow] if any(s in kind for s in SLOW) else []
        )
        for kind in KINDS
    ]
)
async def cell(request: pytest.FixtureRequest) -> AsyncIterator[Cell]:
    async with KINDS[request.param](request) as made:
        yield made


async def refused(cell: Cell, fence: int) -> StaleFence:
    """Both ways; what the reading one said."""
    with pytest.raises(StaleFence):
        await cell.write(fence, 99)
    with pytest.raises(StaleFence) as caught:
        await cell.read(fence)
    return caught.value


async def test_lower_is_refused_equal_is_not_and_nothing_is_changed(cell: Cell) -> None:
    await cell.write(BASE + 5, 30)
    error = await refused(cell, BASE + 4)
    assert (error.fence, error.highest) == (BASE + 4, BASE + 5)
    await cell.write(BASE + 5, 30)  # the same once more: no row comes out different
    assert await cell.read(BASE + 5) == 30
    await cell.write(BASE + 5, 31)
    assert await cell.read(BASE + 6) == 31


async def test_a_read_keeps_older_writers_out(cell: Cell) -> None:
    """What a reader has seen does not change under it: its session is not torn."""
    await cell.write(BASE, 30)
    assert await cell.read(BASE + 2) == 30
    assert (await refused(cell, BASE + 1)).highest == BASE + 2
    assert await cell.read(BASE + 2) == 30


NONE: list[Any] = [-1, MAX_FENCE + 1, True, "7", 7.0, None]


async def test_bad_fences_and_the_highest_one(cell: Cell) -> None:
    for fence in NONE:
        with pytest.raises(BadFence):
            await cell.write(fence, 99)
        with pytest.raises(BadFence):
            await cell.read(fence)
    assert await cell.read(0) == 0
    await cell.write(MAX_FENCE, 1)
    assert (await refused(cell, MAX_FENCE - 1)).highest == MAX_FENCE


async def test_a_story_against_the_model(cell: Cell) -> None:
    chance = random.Random(7)
    highest = value = 0
    for number in range(40):
        fence = BASE + chance.randrange(30) + number // 4
        writes = chance.random() < 0.5
        if fence < highest:
            assert (await refused(cell, fence)).highest == highest
            continue
        highest = fence
        if writes:
            await cell.write(fence, number)
            value = number
        else:
            assert await cell.read(fence) == value


async def test_of_many_at_once_the_highest_has_the_last_word(cell: Cell) -> None:
    fences = [BASE + number for number in range(24)]
    random.Random(7).shuffle(fences)
    done: list[int] = []

    async def write(fence: int) -> None:
        try:
            await cell.write(fence, fence - BASE)
        except StaleFence:
            return
        done.append(fence)

    async with anyio.create_task_group() as tasks:
        for fence in fences:
            tasks.start_soon(write, fence)
    assert max(fences) in done
    assert await cell.read(max(fences)) == 23
