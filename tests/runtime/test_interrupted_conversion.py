"""A grant that is being moved, and what can come in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count
from typing import Unpack

import anyio
import pytest
from anyio.abc import TaskGroup

from aiorwlock_remote import (
    Closed,
    ConfigurationError,
    Held,
    LockError,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    OptionArgs,
)
from aiorwlock_remote.core.commands import Upgrade
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import FaultyLink, FaultyStore

pytestmark = pytest.mark.anyio

NAME = "order", 1
ENDS: dict[type[LockError], Callable[[Locks, Held], Awaitable[object]]] = {
    NotOwner: lambda _, held: held.release(),
    Closed: lambda locks, _: locks.aclose(),
}


@pytest.mark.parametrize("error_type", ENDS)
async def test_a_grant_ends_while_its_upgrade_waits(
    link: FaultyLink, locks: Locks, near: Locks, error_type: type[LockError]
) -> None:
    """Not by a timeout: nobody gave it one."""
    other = await near.rwlock(*NAME).reader.acquire()
    held = await locks.rwlock(*NAME).reader.acquire()

    async def upgrade() -> None:
        with pytest.raises(error_type):
            await held.upgrade()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(upgrade)
            await wait_until(lambda: upgrades(link), 10)
            await ENDS[error_type](locks, held)
    await other.release()
    assert not await near.rwlock(*NAME).locked()


async def test_its_owner_closes_while_another_task_waits(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Nobody released it: it was closed."""

    async def upgrade() -> None:
        with pytest.raises(Closed):
            await held.upgrade()

    async with (
        near.rwlock(*NAME).reader,
        locks.rwlock(*NAME).reader as held,
        anyio.create_task_group() as group,
    ):
        group.start_soon(upgrade)
        await wait_until(lambda: upgrades(link), 10)
        await locks.aclose()


async def test_an_expired_grant_does_not_ask_for_its_upgrade(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Though the keeper has not reported the loss yet."""
    async with near.rwlock(*NAME).reader:
        held = await locks.rwlock(*NAME, lease=60).reader.acquire()
        link.hold_back = True
        async with anyio.create_task_group() as group:

            async def upgrade() -> None:
                with pytest.raises(LockLost):
                    await held.upgrade()

            group.start_soon(upgrade)
            await wait_until(lambda: ready(link), 10)
            held._lease.deadline = 0.0
            link.let_through()
    assert len([command for command in link.sent if isinstance(command, Upgrade)]) == 1


async def test_an_ended_upgrade_is_not_polled_for(
    locks: Locks, near: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that nobody tells of changes would be asked on and on."""
    unwatched: list[Resource] = []
    monkeypatch.setattr(FaultyStore, "unwatch", lambda _, what: unwatched.append(what))
    async with near.rwlock(*NAME).reader:
        held = await locks.rwlock(*NAME, lease=60).reader.acquire()
        with pytest.raises(LockTimeout):
            await held.upgrade(timeout=0.05)
        assert len(unwatched) == 1
        await held.release()


async def test_a_released_grant_is_not_upgraded(locks: Locks, near: Locks) -> None:
    reader = await locks.rwlock(*NAME).reader.acquire()
    await reader.release()
    other = await near.rwlock(*NAME).writer.acquire()
    for ask in (reader.upgrade, reader.try_upgrade):
        with pytest.raises(NotOwner):
            await ask()
    assert other.valid
    await other.release()


async def test_a_reader_is_upgraded_once(locks: Locks, near: Locks) -> None:
    """Neither once more, nor by two tasks at once."""
    reader = await locks.rwlock(*NAME).reader.acquire()
    moved: list[Held] = []

    async def upgrade() -> None:
        with suppress(NotOwner):
            moved.append(await reader.upgrade())

    async with anyio.create_task_group() as group:
        group.start_soon(upgrade)
        group.start_soon(upgrade)
    (writer,) = moved
    for ask in (reader.upgrade, reader.try_upgrade):
        with pytest.raises(NotOwner):
            await ask()
    with pytest.raises(ConfigurationError):
        await writer.upgrade()
    (shown,) = (await near.rwlock(*NAME).info()).holders
    assert shown.holder == writer.holder
    assert await writer.release()
    assert not await near.rwlock(*NAME).locked()


MOVES: dict[str, Callable[[Held], Awaitable[Held]]] = {
    "write": Held.downgrade,
    "read": Held.upgrade,
}


@pytest.fixture(params=MOVES)
def mode(request: pytest.FixtureRequest) -> str:
    """In which it is held before the move."""
    mode: str = request.param
    return mode


async def taken(locks: Locks, mode: str, **options: Unpack[OptionArgs]) -> Held:
    """A grant of that mode."""
    rw = locks.rwlock(*NAME, **options)
    return await (rw.writer if mode == "write" else rw.reader).acquire()


@asynccontextmanager
async def moving(
    link: FaultyLink, held: Held, error_type: type[LockError] | None = None
) -> AsyncIterator[TaskGroup]:
    """While it is moved: carried out, and the answer held back until the end."""
    link.hold_back = True

    async def move() -> None:
        with nullcontext() if error_type is None else pytest.raises(error_type):
            moved = await MOVES[held.mode](held)
            assert moved.valid
            await moved.release()

    async with anyio.create_task_group() as group:
        group.start_soon(move)
        await wait_until(lambda: ready(link), 10)
        yield group
        link.let_through()


async def test_a_grant_is_lost_during_its_conversion(
    link: FaultyLink, locks: Locks, near: Locks, mode: str
) -> None:
    """The converted grant is released, and the conversion gets the error."""
    held = await taken(locks, mode, lease=None, max_hold=0.3)

    async def ended() -> bool:
        return not held.valid

    async with moving(link, held, LockLost):
        await wait_until(ended, 10)
    assert not await near.rwlock(*NAME).locked()


async def test_it_is_released_while_it_is_moved(
    link: FaultyLink, locks: Locks, near: Locks, mode: str
) -> None:
    """The converted grant is released, not lost; the conversion gets the error."""
    held = await taken(locks, mode)
    released: list[bool] = []

    async def release() -> None:
        released.append(await held.release())
        assert not await near.rwlock(*NAME).locked()

    async with moving(link, held, NotOwner) as group:
        group.start_soon(release)
        await wait_until(lambda: ready(link, 2), 10)
    assert released == [True]
    assert held.lost is None
    assert not await near.rwlock(*NAME).locked()


async def test_its_block_is_left_while_it_is_moved(
    link: FaultyLink, locks: Locks, near: Locks, mode: str
) -> None:
    rw = locks.rwlock(*NAME)
    inside, leave = anyio.Event(), anyio.Event()
    grants: list[Held] = []

    async def hold() -> None:
        async with rw.writer if mode == "write" else rw.reader as held:
            grants.append(held)
            inside.set()
            await leave.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(hold)
        await inside.wait()
        async with moving(link, grants[0], NotOwner):
            leave.set()
            await wait_until(lambda: ready(link, 2), 10)
    assert not await near.rwlock(*NAME).locked()


async def test_a_ticket_is_not_given_away_during_a_conversion(
    link: FaultyLink, locks: Locks, near: Locks, mode: str
) -> None:
    """A ticket that the move is about to end would be worth nothing."""
    held = await taken(locks, mode)
    async with moving(link, held):
        with pytest.raises(NotOwner, match="detach"):
            held.detach()
        assert await near.rwlock(*NAME).locked(), "by what it was moved to"


async def test_a_grant_is_extended_during_its_conversion(
    link: FaultyLink, locks: Locks, mode: str
) -> None:
    """What was moved cannot be renewed, and was not lost."""
    held = await taken(locks, mode)

    async def extend() -> None:
        with pytest.raises(NotOwner):
            await held.extend()

    async with moving(link, held) as group:
        group.start_soon(extend)
        await wait_until(lambda: ready(link, 2), 10)
    assert held.lost is None


async def test_a_grant_is_renewed_during_its_conversion(
    link: FaultyLink, locks: Locks, mode: str
) -> None:
    """The keeper finds it gone before the answer tells whereto: it is not lost."""
    held = await taken(locks, mode, lease=1.5)
    renewals = count(1)
    begun = 0

    def begin(_: Hashable, __: float) -> None:
        nonlocal begun
        begun = next(renewals)

    async def twice() -> bool:
        return begun > 1 or held.lost is not None

    link.before_renewal = begin
    async with moving(link, held):
        await wait_until(twice, 10)
    assert held.lost is None


async def ready(link: FaultyLink, answers: int = 1) -> bool:
    """Whether so many answers are held back."""
    return link.held_back >= answers


async def upgrades(link: FaultyLink) -> bool:
    """Whether one has been asked for."""
    return any(isinstance(command, Upgrade) for command in link.sent)
