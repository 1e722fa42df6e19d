"""A grant that is being moved, and what can come in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from aiorwlock_remote import Closed, Held, LockError, LockLost, Locks, NotOwner
from aiorwlock_remote.core.commands import Upgrade
from aiorwlock_remote.testing.conformance.party import until
from aiorwlock_remote.testing.faults import Link

pytestmark = pytest.mark.anyio

NAME = "order", 1
ENDS: dict[type[LockError], Callable[[Locks, Held], Awaitable[object]]] = {
    NotOwner: lambda _, held: held.release(),
    Closed: lambda locks, _: locks.aclose(),
}


@pytest.mark.parametrize("told", ENDS)
async def test_it_ends_while_it_waits(
    link: Link, locks: Locks, near: Locks, told: type[LockError]
) -> None:
    """Not by a timeout: nobody gave it one."""
    other = await near.rwlock(*NAME).reader.acquire()
    held = await locks.rwlock(*NAME).reader.acquire()

    async def upgrade() -> None:
        with pytest.raises(told):
            await held.upgrade()

    async def waits() -> bool:
        return any(isinstance(command, Upgrade) for command in link.sent)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(upgrade)
            await until(waits, 10)
            await ENDS[told](locks, held)
    await other.release()
    assert not await near.rwlock(*NAME).locked()


MOVES: dict[str, Callable[[Held], Awaitable[object]]] = {
    "write": Held.downgrade,
    "read": Held.upgrade,
}


@pytest.mark.parametrize("mode", MOVES)
@pytest.mark.parametrize("told", [LockLost, NotOwner])
async def test_it_ends_while_it_is_moved(
    link: Link, locks: Locks, near: Locks, told: type[LockError], mode: str
) -> None:
    """What the move granted meanwhile is given back, and who moved it is told."""
    rw = locks.rwlock(*NAME, lease=None, max_hold=0.3 if told is LockLost else None)
    held = await (rw.writer if mode == "write" else rw.reader).acquire()
    link.hold_back = True

    async def move() -> None:
        with pytest.raises(told):
            await MOVES[mode](held)

    async def release() -> None:
        with suppress(LockLost):  # the store has moved it already
            await held.release()

    async def ended() -> bool:
        return not held.valid

    async with anyio.create_task_group() as group:
        group.start_soon(move)
        await until(lambda: ready(link), 10)
        if told is NotOwner:
            group.start_soon(release)
        await until(ended, 10)
        link.let_through()
    assert not await near.rwlock(*NAME).locked()


async def ready(link: Link) -> bool:
    """Whether an answer is held back."""
    return bool(link.held_back)
