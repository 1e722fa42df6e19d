"""What is listed, left early."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, Locks, connect

pytestmark = pytest.mark.anyio


async def five(locks: Locks, stack: AsyncExitStack) -> None:
    for number in range(5):
        await stack.enter_async_context(locks.mutex("listed", number, lease=None))


# trio warns of a generator that is left to the collector, and the test would fail.
@pytest.mark.parametrize("how", ["list", "stale"])
async def test_a_list_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    async with connect(url) as locks, AsyncExitStack() as stack:
        await five(locks, stack)
        listed = locks.list() if how == "list" else locks.stale()
        async with aclosing(listed) as found:
            async for seen in found:
                assert seen.locked
                break
        with anyio.CancelScope() as scope:
            async with aclosing(locks.list()) as found:
                async for _ in found:
                    scope.cancel()
                    await anyio.sleep_forever()
        assert scope.cancelled_caught


@pytest.mark.parametrize("kind", [5, b"order", ""])
async def test_types_that_cannot_be(kind: str) -> None:
    async with connect("memory://") as locks:
        for listed in (locks.list(kind), locks.stale(0, kind)):
            with pytest.raises(ConfigurationError):
                await anext(listed)
