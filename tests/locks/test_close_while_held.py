"""A ``Locks`` that is closed protects nothing: what goes on under it gets an error."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Closed, Held, LockLost, Locks, connect
from tests.locks.body_task import Body

pytestmark = pytest.mark.anyio


@pytest.fixture
async def locks(tmp_path: Path) -> Locks:
    return await connect(f"memory://{tmp_path.name}")


async def test_a_body_is_cancelled(locks: Locks) -> None:
    async with Body(locks.mutex("order", 1, lease=None).acquire()) as body:
        await locks.aclose()
        assert await body.left() == "cancelled"
    assert isinstance(body.error, Closed)


async def test_a_body_under_several_locks_is_cancelled(locks: Locks) -> None:
    several = locks.multi(locks.mutex("order", 1), locks.mutex("order", 2))
    async with Body(several) as body:
        await locks.aclose()
        assert await body.left() == "cancelled"
    assert isinstance(body.error, Closed)


async def test_the_task_that_closes_locks_goes_on(locks: Locks) -> None:
    """It knows what it does."""
    went_on = False
    async with locks.mutex("order", 1):
        await locks.aclose()
        await checkpoint()
        went_on = True
    assert went_on


async def test_a_body_that_ends_before_it_is_cancelled_gets_the_error(
    locks: Locks,
) -> None:
    async with Body(locks.mutex("order", 1)) as body:
        body.end()
        await locks.aclose()
        assert await body.left() == "ended"
    assert isinstance(body.error, Closed)


async def test_its_own_error_goes_first(locks: Locks) -> None:
    async with Body(locks.mutex("order", 1)) as body:
        body.end(KeyError("its own"))
        await locks.aclose()
        await body.left()
    assert isinstance(body.error, KeyError)


async def test_one_that_is_not_to_be_cancelled_goes_on(locks: Locks) -> None:
    async with Body(locks.mutex("order", 1, on_lost="flag")) as body:
        await locks.aclose()
        assert isinstance(body.held, Held)
        assert not body.held.valid
        with pytest.raises(Closed):
            body.held.check()
        body.end()
        assert await body.left() == "ended"
    assert body.error is None


async def test_guarded_bodies_are_cancelled_by_closing(locks: Locks) -> None:
    held = await locks.mutex("order", 1).acquire()
    raised: list[BaseException] = []

    async def work() -> None:
        try:
            await held.guard(anyio.sleep_forever())
        except Closed as exc:
            raised.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await anyio.wait_all_tasks_blocked()
        await locks.aclose()
    assert len(raised) == 1


@pytest.mark.parametrize("on_lost", ["raise", "flag"])
async def test_a_grant_lost_before_closing_is_lost(
    locks: Locks, on_lost: Literal["raise", "flag"]
) -> None:
    async with Body(locks.mutex("order", 1, on_lost=on_lost)) as body:
        assert isinstance(body.held, Held)
        body.held._lease.lose("stolen")
        await locks.aclose()
        assert body.held.lost == "stolen"
        body.end()
    if on_lost == "raise":
        assert isinstance(body.error, LockLost)
    else:
        assert body.error is None
