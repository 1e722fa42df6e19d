"""Making the tables through a proxy that holds back what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.backends.redis.connections import eventually
from tests.servers.proxy import Proxy


async def is_not_cut_off(make: Callable[[], Awaitable[None]], proxy: Proxy) -> None:
    """Whoever is cancelled waits for the answer, and the one connection is well."""
    await make()
    proxy.hold()
    making = asyncio.ensure_future(make())
    await eventually(lambda: proxy.held > 0, "asked")
    making.cancel()
    done, _ = await asyncio.wait({making}, timeout=0.1)
    assert not done
    proxy.let_go()
    with pytest.raises(asyncio.CancelledError):
        await making
    await make()
    assert proxy.connections == 1
