"""FastAPI and aiohttp under real HTTP: who gets in, what is answered, what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from aiorwlock_remote import connect
from aiorwlock_remote.fencing.header import HEADER
from tests.integrations.guests import SERVERS, Guest, served, until
from tests.servers.fix_redis import StartRedis

pytestmark = pytest.mark.asyncio

#: uvicorn's other parser tells nothing more where nobody hangs up or uploads.
both = pytest.mark.parametrize("server", ["fastapi-h11", "aiohttp"])
every = pytest.mark.parametrize("server", SERVERS)

REQUESTS = 200


@pytest_asyncio.fixture
async def guest(server: str, tmp_path: Path) -> AsyncIterator[Guest]:
    async with served(server, f"sqlite:///{tmp_path}/locks.db") as guest:
        yield guest


@pytest_asyncio.fixture
async def answered_soon(server: str, tmp_path: Path) -> AsyncIterator[Guest]:
    """A loss is found at the next renewal: after a third of the lease."""
    async with served(server, f"sqlite:///{tmp_path}/locks.db", lease=2) as guest:
        yield guest


def is_problem(answer: httpx.Response, status: int) -> bool:
    kind = answer.headers["content-type"].partition(";")[0]
    assert answer.status_code == status, answer.text
    assert kind == "application/problem+json"
    assert answer.json()["status"] == status
    return True


@pytest.mark.slow
@both
async def test_two_hundred_at_once_lose_no_update(guest: Guest) -> None:
    async def pay(number: int) -> httpx.Response:
        spelling = "7" if number % 2 else "007"  # one invoice, one lock
        return await guest.http.post(f"/invoices/{spelling}/pay?work=0.002")

    answers = await asyncio.gather(*map(pay, range(REQUESTS)))
    assert [answer.status_code for answer in answers] == [200] * REQUESTS
    assert sorted(a.json()["paid"] for a in answers) == [*range(1, REQUESTS + 1)]
    assert guest.account.most_inside == 1
    await guest.nothing_left()


@both
async def test_the_control_without_a_lock_loses_updates(guest: Guest) -> None:
    await asyncio.gather(*(guest.account.pay(0.002) for _ in range(20)))
    assert guest.account.paid < 20


@both
async def test_readers_are_in_together_and_keep_a_writer_out(guest: Guest) -> None:
    readers = [
        asyncio.create_task(guest.http.get("/invoices/7/stay")) for _ in range(5)
    ]

    async def together() -> bool:
        return guest.account.inside == 5

    await until(together)
    assert is_problem(await guest.http.post("/invoices/7/brief"), 423)
    guest.account.go_on.set()
    answers = await asyncio.gather(*readers)
    assert len({answer.json()["fence"] for answer in answers}) == 1
    assert (await guest.http.post("/invoices/7/brief")).status_code == 200


@both
async def test_not_in_time_is_423_and_says_when_but_not_who(guest: Guest) -> None:
    holder = asyncio.create_task(guest.http.post("/invoices/7/stay"))
    await guest.held()
    refused = await guest.http.post("/invoices/7/brief")
    assert is_problem(refused, 423)
    assert refused.headers["retry-after"] == "1"  # the holder lives
    assert "secret" not in refused.text
    assert (await guest.http.post("/invoices/8/brief")).status_code == 200
    guest.account.go_on.set()
    assert (await holder).status_code == 200
    await guest.nothing_left()


@every
async def test_a_disconnect_while_waiting_leaves_the_queue(guest: Guest) -> None:
    holder = asyncio.create_task(guest.http.post("/invoices/7/stay"))
    await guest.held()
    lines = [await guest.calls("POST", "/invoices/7/pay") for _ in range(10)]
    await guest.queued(10)
    for line in lines:
        line.close()
    await guest.queued(0)
    assert not holder.done()
    guest.account.go_on.set()
    assert (await holder).status_code == 200
    await guest.nothing_left()
    assert guest.account.paid == 0  # nobody's work was begun for nobody


@every
async def test_a_disconnect_while_holding_leaves_no_lock(
    guest: Guest, server: str
) -> None:
    line = await guest.calls("POST", "/invoices/7/stay")
    await guest.held()
    line.close()
    if server != "aiohttp":  # FastAPI's handlers are not cancelled
        guest.account.go_on.set()
    await guest.nothing_left()
    done = "cancelled" if server == "aiohttp" else "stayed"
    assert guest.account.happened == {done: 1}


@every
async def test_a_disconnect_during_a_stream_leaves_no_lock(guest: Guest) -> None:
    line = await guest.calls("POST", "/invoices/7/stream")
    await guest.held()
    line.close()
    await guest.nothing_left()
    assert guest.account.happened == {"cancelled": 1}


@both
async def test_a_lock_broken_meanwhile_is_503_and_cancels(answered_soon: Guest) -> None:
    guest = answered_soon
    working = asyncio.create_task(guest.http.post("/invoices/7/stay"))
    await _break(guest)
    answer = await working
    assert is_problem(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert guest.account.happened == {"cancelled": 1}
    await guest.nothing_left()


@every
async def test_a_lock_broken_in_a_stream_cuts_it_off(answered_soon: Guest) -> None:
    guest = answered_soon
    async with guest.http.stream("POST", "/invoices/7/stream") as answer:
        assert answer.status_code == 200
        parts = answer.aiter_text()
        fence = await anext(parts)
        assert (await guest.info()).holders[0].fence == int(fence)
        await _break(guest)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(parts)
    await guest.nothing_left()


@both
async def test_errors_of_the_handler_pass_and_free_the_lock(guest: Guest) -> None:
    for _ in range(2):
        answer = await guest.http.post("/invoices/7/gone")
        assert answer.status_code == 410
        assert "write" in answer.text
    await guest.nothing_left()


@both
async def test_a_bug_is_500(guest: Guest) -> None:
    assert (await guest.http.post("/invoices/7/twice")).status_code == 500
    await guest.nothing_left()


@pytest.mark.parametrize("name", ["x", "7_0.5", "%00", "%F0%9F%98%80", "1e9"])
@both
async def test_a_path_that_names_no_lock(guest: Guest, server: str, name: str) -> None:
    answer = await guest.http.post(f"/invoices/{name}/brief")
    assert answer.status_code == (404 if server == "aiohttp" else 422)


@every
async def test_an_upload_that_waits_comes_in_whole(guest: Guest) -> None:
    async with guest.locks.mutex("invoice", 7):
        data = bytes(range(256)) * 4096
        upload = guest.http.post("/invoices/7/upload", content=data)
        sending = asyncio.create_task(upload)
        await guest.queued(1)
    assert (await sending).json()["size"] == len(data)


@both
async def test_fences_in_headers(guest: Guest) -> None:
    async with guest.locks.mutex("other", 1) as held:
        fence = held.fence

    async def put(*values: str) -> httpx.Response:
        headers = [(HEADER.encode(), value.encode("latin-1")) for value in values]
        return await guest.http.put("/invoices/7/fenced", headers=headers)

    assert (await put(str(fence))).json() == {"fence": fence}
    assert (await put(str(fence))).status_code == 200
    assert is_problem(await put(str(fence - 1)), 412)
    bad = ["", "\xb3", "-1", "1_0", "0x10", "1, 2", "9" * 17, "9007199254740991"]
    for value in bad:
        assert is_problem(await put(value), 400), value
    assert is_problem(await put(), 400)
    assert is_problem(await put(str(fence), str(fence)), 400)
    assert guest.account.highest == fence


@both
async def test_a_store_that_is_down_is_503(
    server: str, start_redis: StartRedis
) -> None:
    redis = start_redis()
    async with served(server, redis.url, outside="memory://") as guest:
        assert (await guest.http.post("/invoices/7/brief")).status_code == 200
        redis.close()
        assert is_problem(await guest.http.post("/invoices/7/brief"), 503)


async def _break(guest: Guest) -> None:
    seen = await guest.held()
    assert await guest.locks.force_release(seen, reason="test") == 1


@every
async def test_nothing_is_left_when_the_application_stops(
    server: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    async with served(server, url) as guest:
        await guest.calls("POST", "/invoices/7/stream")
        await guest.held()
        guest.account.go_on.set()
    async with connect(url) as locks:
        assert [seen async for seen in locks.list()] == []
