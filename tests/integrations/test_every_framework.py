"""What each web framework does with a hold: the same application, the same answers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError
from aiorwlock_remote.core.commands import Command, Release
from aiorwlock_remote.integrations._http import MAX_TEXT
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.asgi_connection import LEAVES, Line, part, scope_of
from tests.integrations.guests import until
from tests.integrations.web_apps import APPS, THREADED, running

pytestmark = [
    pytest.mark.asyncio,
    # Django leaves the file of a body to the collector of garbage if a view fails.
    pytest.mark.filterwarnings(
        "ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning"
    ),
]

every = pytest.mark.parametrize("kind", APPS)
ASGI = [kind for kind in APPS if kind not in {*THREADED, "aiohttp"}]
WITHOUT_UNHELD = ("fastapi", "aiohttp")
"""A parameter of FastAPI is a hold; the server of aiohttp answers 500."""
ASYNC = [kind for kind in APPS if kind not in THREADED]
UNAVAILABLE = (BackendUnavailable, ExceptionGroup)


@pytest.fixture
def memory() -> FaultyMemory:
    return FaultyMemory()


@asynccontextmanager
async def opened(kind: str, memory: FaultyMemory) -> AsyncIterator[httpx.AsyncClient]:
    async with running(kind, memory) as app, app.client() as http:
        yield http


def is_problem(answer: httpx.Response, status: int, retry_after: str) -> bool:
    kind = answer.headers["content-type"].partition(";")[0]
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["retry-after"] == retry_after
    return bool(kind == "application/problem+json")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = ".http", ".store"
    said = [record for record in caplog.records if record.name.endswith(ours)]
    return [record.getMessage().partition(" ")[0] for record in said]


async def held_by(http: httpx.AsyncClient, path: str) -> str:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text.split(" ")[0]


@every
async def test_the_path_names_the_lock(kind: str, memory: FaultyMemory) -> None:
    async with opened(kind, memory) as http:
        for path, resource in (
            ("/path/007", "order/007"),
            ("/number/007", "order/7"),
            ("/number/7", "order/7"),
        ):
            assert await held_by(http, path) == resource
        assert (await http.get("/number/x")).status_code in {404, 422}


@every
async def test_a_fence_goes_through_a_header(kind: str, memory: FaultyMemory) -> None:
    async with opened(kind, memory) as http:
        fence = (await http.get("/number/7")).text.split(" ")[1]
        assert int(fence) > 0
        fenced = await http.get("/fence", headers={"Lock-Fence": fence})
        assert (fenced.status_code, fenced.text) == (200, fence)
        assert (await http.get("/fence")).status_code == 400


@every
async def test_another_has_it(
    kind: str, memory: FaultyMemory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorwlock_remote.http")
    async with opened(kind, memory) as http, memory.connect_rival() as rival:
        async with rival.mutex("order", 7).acquire(reason="refund"):
            refused = await http.get("/number/7")
            assert await held_by(http, "/number/8") == "order/8"
        assert is_problem(refused, 423, "1")
        assert "refund" not in refused.text
        (said,) = [r.getMessage() for r in caplog.records if r.name.endswith(".http")]
        assert "refund" in said
        assert await held_by(http, "/number/7") == "order/7"


@every
async def test_a_lock_that_is_lost_is_503(kind: str, memory: FaultyMemory) -> None:
    async with opened(kind, memory) as http:
        assert is_problem(await http.get("/lost/7"), 503, "1")
        assert await held_by(http, "/number/7") == "order/7"


@every
async def test_the_handler_was_done_and_its_release_unanswered(
    kind: str, memory: FaultyMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so: an operator has to look at this very resource."""

    def fate(command: Command) -> Fate:
        return Fate.LOSE if isinstance(command, Release) else Fate.PASS

    async with opened(kind, memory) as http:
        memory.link.fate = fate
        assert is_problem(await http.get("/number/7"), 503, "5")
        memory.link.fate = lambda _: Fate.PASS
    (said,) = [text for text in caplog.messages if "unavailable" in text]
    assert "the handler was done, and the release of order/7 unanswered" in said


@every
async def test_the_store_is_down_and_back(
    kind: str, memory: FaultyMemory, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, memory) as http:
        assert await held_by(http, "/number/7") == "order/7"
        assert (await http.get("/ready")).json() == {"status": "ok"}
        with memory.down():
            for _ in range(2):
                assert is_problem(await http.get("/number/7"), 503, "5")
                assert is_problem(await http.get("/ready"), 503, "5")
        assert await held_by(http, "/number/7") == "order/7"
        assert (await http.get("/ready")).json() == {"status": "ok"}
        assert "store_down_at_start" not in caplog.text


@every
async def test_an_application_starts_without_its_store_and_connects_later(
    kind: str, memory: FaultyMemory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory.link.down = True
    async with running(kind, memory) as app, app.client() as http:
        for _ in range(2):
            assert is_problem(await http.get("/number/7"), 503, "5")
            assert is_problem(await http.get("/ready"), 503, "5")
        memory.link.down = False

        async def connected() -> bool:
            answers = [await http.get(path) for path in ("/ready", "/number/7")]
            return {answer.status_code for answer in answers} == {200}

        await until(connected)
    said = [event for event in events(caplog) if event.startswith("store")]
    # Django's view of the health is synchronous, with locks of its own.
    times = 2 if kind == "django" else 1
    assert said == [*["store_down_at_start"] * times, *["store_connected"] * times]


@pytest.mark.parametrize("kind", ASYNC)
async def test_by_default_it_does_not_start_without_its_store(
    kind: str, memory: FaultyMemory
) -> None:
    with memory.down(), pytest.raises(UNAVAILABLE) as caught:
        async with running(kind, memory, required=True):
            pytest.fail("started")
    if isinstance(caught.value, ExceptionGroup):  # Litestar's
        assert caught.group_contains(BackendUnavailable)


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_application_ends_without_its_store(
    kind: str, memory: FaultyMemory
) -> None:
    with memory.down():
        async with running(kind, memory):
            pass
    before = asyncio.all_tasks()
    await anyio.sleep(0.1)  # longer than the first pause
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("why", ["the client leaves", "the server stops"])
@pytest.mark.parametrize("kind", ASGI)
async def test_requests_that_wait_end_at_once(
    kind: str, why: str, memory: FaultyMemory
) -> None:
    async def queued(count: int) -> None:
        async def reached() -> bool:
            queue = (await rival.mutex("order", 7).info()).queue
            return sum(entry.waiting for entry in queue) == count

        await until(reached)

    async with (
        memory.connect_rival() as rival,
        running(kind, memory) as app,
        rival.mutex("order", 7),
    ):
        line = Line(part(b"", more=False))
        more = {"method": "GET", "raw_path": b"/waits/7", "server": ("test", 80)}
        call = asyncio.create_task(line.calls(app.app, scope_of("/waits/7", **more)))
        await queued(1)
        if why == "the client leaves":
            line.sends(LEAVES)
        else:
            assert app.stop_waiting is not None
            app.stop_waiting()
        async with asyncio.timeout(60):
            await call
        await queued(0)
    if why == "the server stops":
        assert line.status == 503
        assert httpx.Headers(line.answer[0]["headers"])["retry-after"] == "1"
    elif kind != "django":  # its own handler ends without an answer
        assert line.status == 499


@pytest.mark.parametrize("kind", [each for each in APPS if each not in WITHOUT_UNHELD])
async def test_without_a_hold_it_is_a_bug(kind: str, memory: FaultyMemory) -> None:
    async with running(kind, memory) as app, app.client() as http:
        with pytest.raises(ConfigurationError, match="no hold"):
            await http.get("/unheld")


# -------------------------- locks named by the query or the body, as the client chooses


@every
async def test_one_order_has_one_lock(kind: str, memory: FaultyMemory) -> None:
    async with opened(kind, memory) as http:
        for spelling in ("7", "007"):
            assert await held_by(http, f"/query?id={spelling}") == "order/7"
        for value in (7, "7", "007"):
            body = json.dumps({"id": value})
            json_type = {"content-type": "application/json"}
            answer = await http.post("/body", content=body, headers=json_type)
            # Its handler reads the same body.
            resource, _, read = answer.text.split(" ", 2)
            assert (resource, read) == ("order/7", body)
        assert await held_by(http, "/name?name=J%C3%BCrg/7") == "order/Jürg/7"


@every
async def test_a_query_that_names_two_locks(kind: str, memory: FaultyMemory) -> None:
    """Its handler may read the other one."""
    async with opened(kind, memory) as http:
        for query in ("id=7&id=8", "id=7&id=7", "", "id=", "id=x", "id=1e3", "ID=7"):
            assert (await http.get(f"/query?{query}")).status_code == 422, query
        for name in ("", "%00", "a%0Ab", "%E2%80%AE", "x" * (MAX_TEXT + 1)):
            assert (await http.get(f"/name?name={name}")).status_code == 422, name
        assert (await http.get(f"/name?name={'x' * MAX_TEXT}")).status_code == 200


BAD = [
    *(b"", b"{", b"[]", b"[7]", b"null", b"7", b'"id"', b"{}", b"\xff"),
    *(b'{"id": null}', b'{"id": true}', b'{"id": 7.5}', b'{"id": [7]}', b'{"ID": 7}'),
    *(b'{"id": {"id": 7}}', b'{"id": ""}', b'{"id": " 7"}', b'{"id": "7_0"}'),
    b'{"id": ' + b"9" * 101 + b"}",
    b'{"id": ' + b"9" * 5000 + b"}",
    b"[" * 100_000,
]


@every
async def test_a_body_that_names_no_lock(kind: str, memory: FaultyMemory) -> None:
    async with opened(kind, memory) as http:
        for body in BAD:
            answer = await http.post("/body", content=body)
            assert answer.status_code == 422, body[:20]
