"""Who leads, or stands by, goes on after an outage that is longer than the lease."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorwlock_remote import Acquisition, Held, Locks, Mutex, connect
from tests.docs.fix_blocks import blocks
from tests.examples.fix_site import EXAMPLES
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

PAGE = EXAMPLES.parent / "docs" / "howto" / "patterns.md"

Work = Callable[[Held], Awaitable[int]]
Lead = Callable[[Work], Awaitable[int]]


class Impatient:
    """Locks of a short lease; tells when they have been asked for three times."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._asked = 0
        self.asked_again = asyncio.Event()

    def mutex(self, kind: str, number: str, **_: object) -> Impatient:
        self._mutex: Mutex = self._locks.mutex(kind, number, lease=1)
        return self

    def acquire(self, **options: Any) -> Acquisition:  # noqa: ANN401 - as the real one
        self._asked += 1
        if self._asked == 3:
            self.asked_again.set()
        return self._mutex.acquire(**options)


def of_page(locks: Impatient) -> Lead:
    """``lead(work)`` as the page has it."""
    found = [b.text for b in blocks(PAGE.read_text("utf-8")) if "def lead(" in b.text]
    (block,) = found
    namespace: dict[str, Any] = {"locks": locks}
    text = "import asyncio\nfrom aiorwlock_remote import *\n"
    text += block.partition("async def work(")[0]
    exec(text, namespace)  # noqa: S102 - our own document
    lead: Lead = namespace["lead"]
    return lead


def of_example(locks: Impatient) -> Lead:
    """``lead(locks, work)`` of ``anyio_task.py``."""
    path = EXAMPLES / "anyio_task.py"
    spec = importlib.util.spec_from_file_location("anyio_task", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda work: module.lead(locks, work)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("made", [of_page, of_example])
async def test_an_outage_that_is_longer_than_the_lease(
    redis_server: RedisServer, made: Callable[[Impatient], Lead]
) -> None:
    leading, fences = asyncio.Event(), list[int]()

    async def work(held: Held) -> int:
        fences.append(held.fence)
        leading.set()
        if len(fences) == 1:
            await asyncio.Event().wait()  # until the lease is lost
        return held.fence

    with Proxy(redis_server.port) as proxy:
        async with (
            connect(proxy.url, prefix=made.__name__) as locks,
            asyncio.timeout(60),
        ):
            impatient = Impatient(locks)
            task = asyncio.ensure_future(made(impatient)(work))
            await leading.wait()
            proxy.refuse()
            proxy.cut()
            asked = asyncio.ensure_future(impatient.asked_again.wait())
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            assert not task.done()  # it was lost, and refused once since
            proxy.accept()
            assert await task == fences[1] > fences[0]
