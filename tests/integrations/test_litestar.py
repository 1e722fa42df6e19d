"""Litestar: handlers, controllers, a store that is down, a server that stops."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any
from uuid import UUID

import httpx
import pytest
from litestar import Controller, Litestar, Request, Response, get, patch, post
from litestar.params import Body, Parameter

from aiorwlock_remote import ConfigurationError, LockLost, connect
from aiorwlock_remote.integrations.litestar import (
    add_locks,
    fence_header,
    get_fence,
    get_held,
    get_locks,
    health,
    hold,
    stop_waiting,
)
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.integrations.asgi_connection import LEAVES, Line, part, scope_of
from tests.integrations.guests import until

pytestmark = pytest.mark.asyncio

AnyRequest = Request[Any, Any, Any]
TEXT = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"


@get("/orders/{id:int}")
@hold("order:{id:int}", timeout=0.1)
async def show(request: AnyRequest, id: Annotated[int, Parameter()]) -> str:  # noqa: A002
    held = get_held(request)
    held.check()
    return f"{held.resource} {id} {fence_header(held)}"


class Orders(Controller):
    path = "/texts/{id:str}"

    @get()
    @hold("order:{id:int}", timeout=0.1)
    async def get(self, request: AnyRequest) -> str:
        return get_held(request).resource

    @patch("/fence")
    async def fence(self, request: AnyRequest) -> str:
        return str(get_fence(request))

    @post()
    @hold("order:{id:str}/{query.x:int}/{body.y:uuid}")
    async def post(
        self, request: AnyRequest, data: Annotated[dict[str, str], Body()]
    ) -> str:
        return f"{get_held(request).name} {data['y']}"


@get("/wait/{id:int}")
@hold("order:{id:int}", timeout=300)
async def wait(request: AnyRequest) -> str:
    return get_held(request).resource


@get("/lost/{id:int}")
@hold("order:{id:int}")
async def lose(request: AnyRequest) -> None:
    locks = get_locks(request)
    async for seen in locks.list():
        await locks.force_release(seen, reason="test")
    await get_held(request).extend()


@get("/bug")
async def bug(request: AnyRequest) -> None:
    get_held(request)


def an_app(store: FaultyMemory | None = None, **more: Any) -> Litestar:  # noqa: ANN401
    handlers: list[Any] = [show, Orders, wait, lose, bug, get("/ready")(health)]
    locks = add_locks(connect(store or FaultyMemory()), required=False)
    return Litestar(handlers, plugins=[locks], **more)


def client(app: Litestar) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def queued(app: Litestar, count: int) -> None:
    async def reached() -> bool:
        seen = await get_locks(app).mutex("order", 7).info()
        return sum(entry.waiting for entry in seen.queue) == count

    await until(reached)


async def test_handlers_and_controllers() -> None:
    app = an_app()
    async with app.lifespan(), client(app) as http:
        assert (await http.get("/orders/007")).text.startswith("order/7 7 ")
        assert (await http.get("/texts/007")).text == "order/7"
        assert (await http.get("/texts/x")).status_code == 404
        assert (await http.patch("/texts/7/fence")).status_code == 400
        fence = (await http.get("/orders/7")).text.split("'")[-2]
        headers = {"Lock-Fence": fence}
        assert (await http.patch("/texts/7/fence", headers=headers)).text == fence
        made = await http.post("/texts/eu?x=007", json={"y": TEXT})
        assert made.text == f"eu/7/{UUID(TEXT)} {TEXT}"
        for query in ("x=7&x=8", "", "x=y"):
            refused = await http.post(f"/texts/eu?{query}", json={"y": TEXT})
            assert refused.status_code == 422
        with pytest.raises(ConfigurationError, match="no hold"):
            await http.get("/bug")


async def test_another_has_it() -> None:
    app = an_app()
    async with app.lifespan(), client(app) as http:
        async with get_locks(app).mutex("order", 7):
            answer = await asyncio.create_task(http.get("/orders/7"))
        assert answer.status_code == 423
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["status"] == 423
        lost = await http.get("/lost/7")
        assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
        assert (await http.get("/orders/7")).status_code == 200


async def test_the_store_is_down_and_back() -> None:
    store = FaultyMemory()
    app = an_app(store)
    store.link.down = True
    async with app.lifespan(), client(app) as http:
        for path in ("/orders/7", "/ready"):
            assert (await http.get(path)).status_code == 503
        store.link.down = False

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(ready)
        assert (await http.get("/orders/7")).status_code == 200


@pytest.mark.parametrize("why", ["the client leaves", "the server stops"])
async def test_waiting_requests_end_at_a_shutdown(why: str) -> None:
    app: Any = an_app()
    async with app.lifespan(), get_locks(app).mutex("order", 7):
        line = Line(part(b"", more=False))
        scope = {**scope_of("/wait/7"), "method": "GET", "raw_path": b"/wait/7"}
        call = asyncio.create_task(line.calls(app, scope))
        await queued(app, 1)
        if why == "the client leaves":
            line.sends(LEAVES)
        else:
            stop_waiting(app)
        await call
        assert line.status == (499 if why == "the client leaves" else 503)
        await queued(app, 0)


async def test_a_handler_of_the_users_goes_before() -> None:
    def lost(_: AnyRequest, error: LockLost) -> Response[str]:
        return Response(error.reason, status_code=599)

    app = an_app(exception_handlers={LockLost: lost})
    async with app.lifespan(), client(app) as http:
        answer = await http.get("/lost/7")
    assert (answer.status_code, answer.text) == (599, "forced")


async def test_a_template_that_does_not_fit_its_route_is_refused() -> None:
    @get("/orders/{other:int}")
    @hold("order:{id:int}")
    async def misnamed(request: AnyRequest) -> None: ...

    @get("/orders/{id:str}")
    @hold("order:{id}")
    async def misread(request: AnyRequest, id: Annotated[int, Parameter()]) -> None: ...  # noqa: A002

    for handler, why in ((misnamed, r"needs \{id\}"), (misread, "7 and 007")):
        app = Litestar([handler], plugins=[add_locks(connect("memory://"))])
        # Litestar raises it in a group.
        with pytest.raises(ExceptionGroup) as caught:
            async with app.lifespan():
                pytest.fail("started")
        (error,) = caught.value.exceptions
        assert isinstance(error, ConfigurationError)
        assert re.search(why, str(error))

    async def without(id: int) -> None: ...  # noqa: A002

    with pytest.raises(ConfigurationError, match="parameter request"):
        hold("order:{id:int}")(without)
    with pytest.raises(ConfigurationError, match="already"):
        Litestar([], plugins=[add_locks(connect("memory://")) for _ in range(2)])
    with pytest.raises(ConfigurationError, match="no locks"):
        get_locks(Litestar([]))
