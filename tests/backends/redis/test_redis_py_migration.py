"""From redis-py's lock to ours by the releases of the page, each beside the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiorwlock_remote import connect
from tests.docs.fix_blocks import blocks
from tests.servers.redis import RedisServer

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "from" / "redis-py.md"
NAMES = ("before", "release_1", "release_2")

Work = Callable[[], Awaitable[None]]
Release = Callable[[Work], Awaitable[None]]


@pytest_asyncio.fixture
async def releases(fresh_redis: RedisServer) -> AsyncIterator[dict[str, Release]]:
    """As the page has them, each with connections of its own."""
    (block,) = (b for b in blocks(PAGE.read_text("utf-8")) if "def release_2" in b.text)
    functions = block.text[block.text.index("async def before") :]
    made: dict[str, Release] = {}
    async with (
        Redis.from_url(fresh_redis.url) as client,
        connect(fresh_redis.url) as one,
        connect(fresh_redis.url) as other,
    ):
        for name, locks in zip(NAMES, (None, one, other), strict=True):
            namespace: dict[str, Any] = {"client": client, "locks": locks}
            exec(functions, namespace)  # noqa: S102 - our own document
            made[name] = namespace[name]
        yield made


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("second", NAMES)
@pytest.mark.parametrize("first", NAMES)
async def test_releases_exclude_each_other(
    releases: dict[str, Release], first: str, second: str
) -> None:
    """All but the first and the last, which never run side by side."""
    entered, left, came = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        entered.set()
        await left.wait()

    async def come() -> None:
        came.set()

    inside = asyncio.ensure_future(releases[first](stay))
    await entered.wait()
    comes = asyncio.ensure_future(releases[second](come))
    if {first, second} == {"before", "release_2"}:
        await came.wait()
    else:
        await asyncio.wait({comes}, timeout=0.2)  # a chance to come in
        assert not came.is_set()
    left.set()
    await asyncio.gather(inside, comes)
