"""What is entered with ``async with`` is entered by one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, Locks, connect
from tests.recipes.fix_rows import sqlite_site

pytestmark = pytest.mark.anyio

MAKERS: dict[str, Callable[[Locks], Any]] = {
    "reader": lambda locks: locks.rwlock("order", 1).reader.acquire(),
    "mutex": lambda locks: locks.mutex("order", 1).acquire(),
    "multi": lambda locks: locks.multi(locks.rwlock("order", 1).reader),
    "row": lambda locks: locks.row_lock("invoices", 1).read(),
}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with sqlite_site(tmp_path) as site:
        yield site.url


@pytest.fixture
async def locks(url: str) -> AsyncIterator[Locks]:
    async with connect(url) as locks:
        yield locks


@pytest.mark.parametrize("name", MAKERS)
async def test_not_by_two_tasks(locks: Locks, name: str) -> None:
    """The second would leave in the first one's name, and the first not at all."""
    entering = MAKERS[name](locks)
    async with entering:
        with pytest.raises(ConfigurationError, match="entered already"):
            async with entering:
                pass
    async with entering:  # nothing is left of it
        pass


async def test_not_while_another_waits(locks: Locks) -> None:
    mutex = locks.mutex("order", 1)
    entering, inside = mutex.acquire(), anyio.Event()

    async def wait() -> None:
        async with entering:
            inside.set()

    async with anyio.create_task_group() as tasks:
        async with mutex:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ConfigurationError, match="a new acquire"):
                async with entering:
                    pass
        await inside.wait()


@pytest.mark.parametrize("name", MAKERS)
async def test_again_after_a_failure(locks: Locks, url: str, name: str) -> None:
    entering = MAKERS[name](locks)
    async with connect(url) as others:
        taken = others.row_lock("invoices", 1).write() if name == "row" else None
        async with taken or others.mutex("order", 1):
            with anyio.move_on_after(0.05) as scope:
                async with entering:
                    pass
            assert scope.cancelled_caught
    async with entering:
        pass
