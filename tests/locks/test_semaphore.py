"""``Locks.semaphore``: its arguments, and what it does not take part in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aiorwlock_remote import ConfigurationError, Locks, Mutex, Semaphore, connect
from aiorwlock_remote.core.permits import MAX_LIMIT
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = pytest.mark.anyio


@pytest.fixture(name="locks")
async def _locks() -> AsyncIterator[Locks]:
    async with FaultyMemory().connect() as locks:
        yield locks


@pytest.mark.parametrize("limit", [0, -1, MAX_LIMIT + 1, True, 2.0, "5", None])
async def test_limits_that_are_none(locks: Locks, limit: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError, match="limit="):
        locks.semaphore("api", "x", limit)


async def test_the_greatest_limit(locks: Locks) -> None:
    assert locks.semaphore("api", "x", MAX_LIMIT).limit == MAX_LIMIT
    assert "limit=250" in repr(locks.semaphore("api", "x", limit=MAX_LIMIT))


@pytest.mark.parametrize(
    "option", [{"fair": False}, {"fair": True}, {"policy": "writer"}]
)
async def test_options_of_locks(locks: Locks, option: dict[str, Any]) -> None:
    """They are refused, also by ``acquire``; those of ``connect`` are for locks."""
    name = next(iter(option))
    with pytest.raises(ConfigurationError, match=f"{name} is no option of a semaphore"):
        locks.semaphore("api", "x", 1, **option)
    with pytest.raises(ConfigurationError, match=name):
        await locks.semaphore("api", "x", 1).acquire(**option)
    if name == "fair":
        return
    async with (
        connect("memory://", **option) as others,
        others.semaphore("api", "x", 1) as held,
    ):
        held.check()


async def test_names_are_checked(locks: Locks) -> None:
    for bad in ("", 5, "\ud800"):
        with pytest.raises(ConfigurationError):
            locks.semaphore(bad, "x", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError):
        locks.semaphore("api", True, 1)


async def test_multi_takes_locks_only(locks: Locks) -> None:
    """Several permits and locks at once could wait for each other."""
    given: Any = locks.semaphore("api", "x", 1)
    with pytest.raises(ConfigurationError):
        await locks.multi(given)


async def test_a_decorator(locks: Locks) -> None:
    """Each call takes a permit."""
    inside, most = 0, 0

    @locks.semaphore("api", "x", limit=2)
    async def call() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(call)
    assert most == 2


async def test_a_semaphore_of_one_is_no_mutex(locks: Locks) -> None:
    one, other = locks.semaphore("a", 1, 1), locks.mutex("a", 1)
    assert isinstance(one, Semaphore)
    assert isinstance(other, Mutex)
    assert one.key != other.key
    assert one.resource == other.resource == "a/1"
    assert one.mode == "permit"


async def test_locked_says_whether_all_permits_are_held(locks: Locks) -> None:
    """By the least limit that counts."""
    two, one = locks.semaphore("a", 1, 2), locks.semaphore("a", 1, 1)
    assert not await two.locked()
    held = await two.acquire()
    assert not await two.locked()
    assert await one.locked()
    assert (await two.info()).locked, "is held"
    await held.release()


async def test_tasks_with_two_limits(locks: Locks) -> None:
    """In one process; they are served in order, and nobody has too much company."""
    order: list[str] = []
    inside: list[int] = []

    async def visit(name: str, limit: int) -> None:
        async with locks.semaphore("a", 1, limit):
            order.append(name)
            inside.append(limit)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
                assert len(inside) <= min(inside)
            inside.remove(limit)

    async with anyio.create_task_group() as group:
        for name, limit in (("a", 3), ("b", 3), ("strict", 1), ("c", 3), ("d", 3)):
            group.start_soon(visit, name, limit)
            await anyio.lowlevel.checkpoint()
    assert sorted(order) == ["a", "b", "c", "d", "strict"]
    assert order.index("strict") == 2
