"""What a lock has to do, whatever its driver lacks."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.testing.conformance.actors import wait_until

PATIENCE = 30.0


def differing(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the parts that were reported as missing."""
    return [
        str(vars(record)["part"])
        for record in caplog.records
        if record.message.startswith("library_differs ")
    ]


async def exclude_and_hand_over(one: Locks, other: Locks) -> None:
    """Check that a lock excludes, and that a waiter gets it with a higher fence."""
    held = await one.mutex("order", 42).acquire()
    assert await other.mutex("order", 42).try_acquire() is None
    came: list[Held] = []

    async def wait() -> None:
        async with other.mutex("order", 42) as second:
            came.append(second)
            assert await one.mutex("order", 42).try_acquire() is None

    async def queued() -> bool:
        return bool((await one.mutex("order", 42).info()).queue)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await wait_until(queued, PATIENCE)
            assert not came
            await held.release()
    assert came[0].fence > held.fence
    assert (await one.mutex("order", 42).info()).holders == ()
