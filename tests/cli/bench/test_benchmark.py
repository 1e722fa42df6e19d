"""What is measured is done: it is counted, and nothing of it is held afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.cli.bench import TYPE, Benchmark, Settings, repeat

pytestmark = pytest.mark.anyio
TASKS = 4


@pytest.fixture
async def locks() -> AsyncIterator[Locks]:
    async with connect("memory://course") as locks:
        yield locks


@pytest.fixture
def course(locks: Locks, tmp_path: Path) -> Benchmark:
    return Benchmark(
        Settings("memory://course", TASKS, 0.0, "asyncio"), locks, tmp_path
    )


async def test_each_is_done_once_at_least_and_counted() -> None:
    done = [0, 0]

    async def first() -> None:
        done[0] += 1
        await checkpoint()

    async def second() -> None:
        done[1] += 1
        await checkpoint()

    times, _ = await repeat([first, second], 0)
    assert done == [1, 1]
    assert len(times) == 2
    times, took = await repeat([first, second], 0.01)
    assert len(times) == sum(done) - 2
    assert took >= 0.01
    assert max(times) <= took


async def test_operations_of_one_and_many_tasks_are_counted(course: Benchmark) -> None:
    counts = {
        measured.name: len(measured.times)
        for measured in (
            await course._request(),
            await course._alone(),
            await course._apart(),
            await course._readers(),
        )
    }
    assert counts == {"request": 1, "alone": 1, "apart": TASKS, "readers": TASKS}


async def test_the_first_turn_is_handed_over_by_nobody(course: Benchmark) -> None:
    turns = await course._turns()
    assert len(turns.times) == TASKS - 1
    assert all(time >= 0 for time in turns.times)


async def test_alone_nobody_hands_over(locks: Locks, tmp_path: Path) -> None:
    """So there are two at least."""
    course = Benchmark(Settings("memory://course", 1, 0.0, "asyncio"), locks, tmp_path)
    assert len((await course._turns()).times) == 1


async def test_names_are_new_ones_of_a_type_of_their_own(
    locks: Locks, course: Benchmark, tmp_path: Path
) -> None:
    other = Benchmark(Settings("memory://course", 1, 0.0, "asyncio"), locks, tmp_path)
    assert course._name("x")[0] == other._name("x")[0] == TYPE
    assert course._name("x") != other._name("x")
