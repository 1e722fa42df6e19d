"""The web applications of `examples/`, under real concurrent HTTP requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from aiorwlock_remote import LockInfo, Locks, connect
from tests.examples.fix_site import WEB_APPS, Site, site

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.parametrize("app", WEB_APPS),
]

REQUESTS = 60
ORDER = 7


async def test_no_update_is_lost(app: str, tmp_path: Path) -> None:
    with site(app, tmp_path) as here:
        async with client() as http:
            statuses: Counter[int] = Counter()

            async def pay_until_done(url: str) -> int:
                while True:
                    answer = await pay(http, url, amount=5, work=0.005)
                    statuses[answer.status_code] += 1
                    if answer.status_code != 423:
                        assert answer.status_code == 200, answer.text
                        paid: int = answer.json()["paid"]
                        return paid

            paid = await asyncio.gather(*map(pay_until_done, here.spread(REQUESTS)))
            shown = [await http.get(f"{url}/orders/{ORDER}") for url in here.urls]
    # Each handler saw what the one before it had written: no sum comes up twice.
    assert sorted(paid) == [5 * n for n in range(1, REQUESTS + 1)]
    assert [answer.json()["paid"] for answer in shown] == [5 * REQUESTS] * 2
    assert statuses[200] == REQUESTS


async def test_readers_share_and_orders_do_not_wait_for_each_other(
    app: str, tmp_path: Path
) -> None:
    with site(app, tmp_path) as here:
        async with client() as http, watching(here) as locks:
            slow = asyncio.create_task(pay(http, here.urls[0], work=3))
            await until(locks, held)
            async with locks.rwlock("order", 8).reader:  # a reader of another order
                get = [http.get(f"{url}/orders/8") for url in here.spread(20)]
                answers = await asyncio.gather(*get)
            assert {answer.status_code for answer in answers} == {200}
            assert not slow.done()
            slow.cancel()


async def test_held_for_too_long_is_423_with_retry_after(
    app: str, tmp_path: Path
) -> None:
    with site(app, tmp_path) as here:
        async with client() as http, watching(here) as locks:
            slow = asyncio.create_task(pay(http, here.urls[0], work=5))
            await until(locks, held)
            refused = await asyncio.gather(
                *(pay(http, url) for url in here.spread(10)),
                *(http.get(f"{url}/orders/{ORDER}") for url in here.urls),
            )
            assert not slow.done()
            assert (await slow).status_code == 200
    for answer in refused:
        assert answer.status_code == 423
        assert media_type(answer) == "application/problem+json"
        assert answer.json()["status"] == 423
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert "payment" not in answer.text  # who holds it is nobody else's business


async def test_a_client_that_hangs_up_leaks_no_lock(app: str, tmp_path: Path) -> None:
    with site(app, tmp_path) as here:
        async with client() as http, watching(here) as locks:
            holding = await hang_up_later(here.urls[0], work=5)
            await until(locks, held)
            waiting = [await hang_up_later(url, work=0) for url in here.spread(6)]
            await until(locks, waited_for)
            for writer in (*waiting, holding):
                writer.close()
            await until(locks, free)
            assert (await pay(http, here.urls[1])).status_code == 200
            assert [doorman async for doorman in locks.list()] == []


async def test_a_lock_broken_meanwhile_is_503_and_nothing_is_written(
    app: str, tmp_path: Path
) -> None:
    with site(app, tmp_path, lease=3) as here:
        async with client() as http, watching(here) as locks:
            assert (await pay(http, here.urls[1], amount=5)).status_code == 200
            slow = asyncio.create_task(pay(http, here.urls[0], amount=100, work=30))
            seen = await until(locks, held)
            assert await locks.force_release(seen, reason="test") == 1
            answer = await asyncio.wait_for(slow, 10)  # the work was cancelled
            assert answer.status_code == 503
            assert media_type(answer) == "application/problem+json"
            assert answer.headers["retry-after"] == "1"
            again = await pay(http, here.urls[0], amount=5)
            assert again.json() == {"order": ORDER, "paid": 10}


# ------------------------------------------------------------------- helpers


def media_type(answer: httpx.Response) -> str:
    return answer.headers["content-type"].partition(";")[0]


def client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=2 * REQUESTS)
    return httpx.AsyncClient(timeout=60, limits=limits, trust_env=False)


async def pay(
    http: httpx.AsyncClient, url: str, *, amount: int = 1, work: float = 0
) -> httpx.Response:
    params = {"amount": amount, "work": work}
    return await http.post(f"{url}/orders/{ORDER}/payments", params=params)


async def hang_up_later(url: str, *, work: float) -> asyncio.StreamWriter:
    """Send a payment; closing what comes back is hanging up."""
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /orders/{ORDER}/payments?amount=1&work={work} HTTP/1.1"
    writer.write(f"{head}\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    return writer


@asynccontextmanager
async def watching(here: Site) -> AsyncIterator[Locks]:
    """A third process, as far as the store can tell: this one."""
    async with connect(here.locks_url) as locks:
        yield locks


async def until(locks: Locks, reached: Callable[[LockInfo], bool]) -> LockInfo:
    """Look at the order's lock until it is as wanted."""
    lock = locks.mutex("order", ORDER)
    for _ in range(1000):
        seen = await lock.info()
        if reached(seen):
            return seen
        await asyncio.sleep(0.02)
    pytest.fail("not within 20 s")


def held(seen: LockInfo) -> bool:
    return seen.locked


def waited_for(seen: LockInfo) -> bool:
    return sum(queued.waiting for queued in seen.queue) >= 6


def free(seen: LockInfo) -> bool:
    return not seen.locked and not seen.queue
