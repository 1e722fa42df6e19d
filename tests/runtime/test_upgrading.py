"""A reader that waits to become a writer, and what can come in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from aiorwlock_remote import Closed, Held, LockError, Locks, NotOwner
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
