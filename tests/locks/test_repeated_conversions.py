"""A grant that is moved all day leaves nothing of what it was before."""

from __future__ import annotations

import gc

import pytest

from aiorwlock_remote import Held, NotOwner, connect
from aiorwlock_remote.locks.session import HeldState

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("no loop has a part in it")]


def grips_of(resource: str) -> int:
    """By type alone: `isinstance` asks for `__class__`, which wakes lazy objects up."""
    gc.collect()
    found = (one for one in gc.get_objects() if type(one) is HeldState)
    return sum(grip.lease.resource.label == resource for grip in found)


async def moved(held: Held, times: int) -> Held:
    for _ in range(times):
        held = await held.downgrade()
        held = await held.upgrade()
    return held


@pytest.mark.slow
async def test_only_the_first_and_the_newest_grant_stay() -> None:
    async with connect("memory://") as locks:
        lock = locks.rwlock("moved", "all day")
        async with lock.writer.acquire() as first:
            soon = await moved(first, 1)
            few = grips_of(first.resource)
            late = await moved(soon, 10)
            del soon
            assert grips_of(first.resource) <= few
            assert repr(first).endswith("moved>")
            with pytest.raises(NotOwner):
                await first.release()
            assert late.valid
        assert not await lock.locked()
