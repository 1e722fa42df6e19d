"""What is FastAPI's own: routers, mounts, threads, lifespans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

import anyio
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response, WebSocket
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount, Router

from aiorwlock_remote import ConfigurationError, Held, LockLost, connect
from aiorwlock_remote.integrations.fastapi import LocksDep, add_locks, get_locks, hold
from tests.integrations.asgi_connection import Line, scope_of
from tests.integrations.fastapi_apps import started, with_locks

pytestmark = pytest.mark.asyncio

Numbered = Annotated[Held, hold("order:{id:int}", timeout=0.1)]
Bare = Annotated[Held, hold("order:{id}", timeout=0.1)]


async def refused(app: FastAPI) -> str:
    with pytest.raises(ConfigurationError) as caught:
        async with started(app):
            pytest.fail("started")
    return str(caught.value)


async def test_a_part_that_the_path_does_not_have() -> None:
    app = with_locks()

    @app.get("/orders/{order_id}")
    async def get(held: Numbered) -> None: ...

    assert "needs {id}, '/orders/{order_id}' does not have it" in await refused(app)


async def test_options_that_do_not_go_with_the_locks_are_no_missing_page() -> None:
    app = FastAPI()
    add_locks(app, connect("memory://", lease=2))

    @app.get("/{id}")
    async def get(held: Annotated[Held, hold("order:{id:int}", margin=5)]) -> None: ...

    async with started(app) as http:
        with pytest.raises(ConfigurationError, match="margin"):
            await http.get("/7")


@pytest.mark.parametrize("kind", [int, UUID, float, Annotated[int, Path(gt=0)]])
async def test_text_that_the_handler_reads_as_something_else(kind: object) -> None:
    app = with_locks()

    @app.get("/orders/{id}")
    async def get(id: kind, held: Bare) -> None: ...  # type: ignore[valid-type]  # noqa: A002

    assert "7 and 007 may be two locks" in await refused(app)


async def test_text_that_another_dependency_reads_as_something_else() -> None:
    async def order(id: int) -> int:  # noqa: A002
        return id

    router = APIRouter(prefix="/orders/{id}")

    @router.get("/", dependencies=[Depends(order)])
    async def get(held: Bare) -> None: ...

    assert "7 and 007" in await refused(with_locks(router))


async def test_text_that_is_read_as_text_or_by_the_path_itself() -> None:
    app = with_locks()

    @app.get("/texts/{id}")
    async def text(id: str, held: Bare) -> str:  # noqa: A002
        assert held.name == id
        return held.resource

    @app.get("/unread/{id}")
    async def unread(held: Bare) -> str:
        return held.resource

    @app.get("/numbers/{id:int}")
    async def number(id: int, held: Bare) -> str:  # noqa: A002
        assert held.name == str(id)
        return held.resource

    async with started(app) as http:
        assert (await http.get("/texts/007")).json() == "order/007"
        assert (await http.get("/unread/007")).json() == "order/007"
        assert (await http.get("/numbers/007")).json() == "order/7"


class Order(BaseModel):
    id: int


async def test_a_body_that_the_hold_and_the_handler_read() -> None:
    app = with_locks()

    @app.post("/orders")
    async def post(
        order: Order, held: Annotated[Held, hold("order:{body.id:int}")]
    ) -> list[object]:
        return [held.resource, order.id]

    async with started(app) as http:
        for value in (7, "7", "007"):
            answer = await http.post("/orders", json={"id": value})
            assert answer.json() == ["order/7", 7]


async def test_routers_hold_too() -> None:
    wanted = hold("order:{tenant}/{id:int}", timeout=0.1)
    inner = APIRouter(prefix="/orders/{id}", dependencies=[wanted])

    @inner.get("/")
    async def get(locks: LocksDep) -> list[str]:
        return [repr(seen.target.key) async for seen in locks.list()]

    outer = APIRouter(prefix="/{tenant}")
    outer.include_router(inner)
    async with started(with_locks(outer)) as http:
        assert (await http.get("/acme/orders/007/")).json() == ["'order,acme%2F7'"]
    assert "needs {tenant}" in await refused(with_locks(inner))


async def test_mounted_applications_share_the_locks_and_the_answers() -> None:
    app, below = with_locks(), FastAPI()
    app.mount("/shop/{id}", below)

    @below.get("/held")
    async def get(held: Annotated[Held, hold("order:{id}", timeout=0.1)]) -> str:
        return held.resource

    async with started(app) as http:
        assert (await http.get("/shop/7/held")).json() == "order/7"
        async with get_locks(app).mutex("order", 7):
            answer = await asyncio.create_task(http.get("/shop/7/held"))
        assert answer.status_code == 423
        assert answer.headers["content-type"] == "application/problem+json"

    @below.get("/bad")
    async def bad(held: Annotated[Held, hold("order:{other}")]) -> None: ...

    assert "needs {other}" in await refused(app)


@pytest.mark.parametrize("locks", ["shared", "its own"])
async def test_a_bug_in_a_mounted_application_is_raised_as_it_is(locks: str) -> None:
    """Not as Starlette's RuntimeError about an answer that has begun."""
    app, below = with_both() if locks == "its own" else (with_locks(), FastAPI())
    app.mount("/shop", below)

    @below.get("/orders/{id}")
    async def get(held: Numbered) -> None:
        raise ConfigurationError(what=held.resource)

    async with started(app) as http:
        with pytest.raises(ConfigurationError, match="order/7"):
            await http.get("/shop/orders/7")


@pytest.mark.parametrize("mounted_by", ["path", "host", "router", "middlewares"])
async def test_locks_of_a_mounted_application_that_nothing_opens(
    mounted_by: str,
) -> None:
    app, below = with_locks(), with_locks()
    if mounted_by == "path":
        app.mount("/shop", below)
    elif mounted_by == "host":
        app.host("test", below)
    elif mounted_by == "middlewares":
        inside = [Middleware(GZipMiddleware)]
        app.routes.append(Mount("/shop", app=below, middleware=inside))
    else:
        app.mount("/", Router([Mount("/shop", app=below)]))
    assert "has locks of its own, which are not opened" in await refused(app)


def with_both() -> tuple[FastAPI, FastAPI]:
    """An application that opens the locks of the one to be mounted in it, too."""
    below = with_locks()

    @asynccontextmanager
    async def both(_: FastAPI) -> AsyncIterator[None]:
        async with below.router.lifespan_context(below):
            yield

    app = FastAPI(lifespan=both)
    add_locks(app, connect("memory://"))
    return app, below


async def test_locks_of_a_mounted_application_that_its_parent_opens() -> None:
    app, below = with_both()
    app.mount("/shop", below)

    @below.get("/orders/{id}")
    async def get(held: Numbered, locks: LocksDep) -> str:
        assert locks is get_locks(below)
        return held.resource

    async with started(app) as http:
        assert (await http.get("/shop/orders/7")).json() == "order/7"


async def test_locks_come_before_the_start() -> None:
    app = FastAPI()
    async with started(app) as http:
        await http.get("/")
    with pytest.raises(ConfigurationError, match="started"):
        add_locks(app, connect("memory://"))


async def test_a_websocket_holds_too() -> None:
    app = with_locks()

    @app.websocket("/orders/{id}")
    async def talk(ws: WebSocket, id: int, held: Numbered) -> None:  # noqa: A002
        await ws.accept()
        await ws.send_text(f"{held.resource} is {id}")
        await ws.close()

    @app.websocket("/texts/{id}")
    async def misread(ws: WebSocket, id: int, held: Bare) -> None: ...  # noqa: A002

    assert "7 and 007 may be two locks" in await refused(app)
    app.router.routes.pop()

    async def call(path: str) -> list[object]:
        line = Line({"type": "websocket.connect"})
        scope = scope_of(path, type="websocket", subprotocols=[])
        extensions: dict[str, object] = {"websocket.http.response": {}}
        await line.calls(app, {**scope, "extensions": extensions})
        return [
            message.get("text", message.get("status", message.get("code")))
            for message in line.answer
        ]

    async with started(app):
        assert await call("/orders/007") == [None, "order/7 is 7", 1000]
        async with get_locks(app).mutex("order", 7):
            assert await asyncio.create_task(call("/orders/7")) == [423, None]
        assert await call("/orders/x") == [1008]


@pytest.mark.parametrize("state", ["before", "open", "closed"])
async def test_a_websocket_whose_lock_is_lost(state: str) -> None:
    """Its client learns that it is not at its end."""
    app = with_locks()

    @app.websocket("/orders")
    async def talk(ws: WebSocket, locks: LocksDep) -> None:
        assert get_locks(ws) is locks is get_locks(app)
        if state != "before":
            await ws.accept()
        try:
            async with locks.mutex("order", 7) as held:
                await break_all(app)
                await held.extend()
        finally:
            if state == "closed":
                await ws.close()

    line = Line({"type": "websocket.connect"})
    scope = scope_of("/orders", type="websocket", subprotocols=[])
    async with started(app):
        await line.calls(app, {**scope, "extensions": {"websocket.http.response": {}}})
    sent = [message.get("status", message.get("code")) for message in line.answer]
    assert (
        sent
        == {
            "before": [503, None],
            "open": [None, 1013],
            "closed": [None, 1000],
        }[state]
    )


async def test_a_handler_of_the_users_goes_before() -> None:
    app = FastAPI()

    @app.exception_handler(LockLost)
    async def lost(_: Request, exc: LockLost) -> Response:
        return Response(exc.reason, status_code=599)

    add_locks(app, connect("memory://"))

    @app.get("/orders/{id}")
    async def get(held: Numbered, locks: LocksDep) -> None:
        async for seen in locks.list():
            await locks.force_release(seen, reason="test")
        await held.extend()

    async with started(app) as http:
        answer = await http.get("/orders/7")
    assert (answer.status_code, answer.text) == (599, "forced")


async def test_a_loss_is_raised_when_a_handler_in_a_thread_is_done() -> None:
    app = FastAPI()
    add_locks(app, connect("memory://", lease=2))
    reported: list[str | None] = []

    @app.get("/orders/{id}")
    def get(held: Numbered) -> str:
        anyio.from_thread.run(break_all, app)
        while held.lost is None:
            time.sleep(0.01)
        reported.append(held.lost)
        return "nobody gets this"

    async with started(app) as http:
        assert (await http.get("/orders/7")).status_code == 503
    assert reported == ["forced"]


async def break_all(app: FastAPI) -> None:
    locks = get_locks(app)
    async for seen in locks.list():
        await locks.force_release(seen, reason="test")


async def test_around_the_users_own_lifespan_and_again() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def mine(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        async with get_locks(app).mutex("start", 1) as held:
            order.append("start")
            yield {"answer": held.fence}
        order.append("stop")

    app = FastAPI(lifespan=mine)
    add_locks(app, connect("memory://"))
    for _ in range(2):
        async with app.router.lifespan_context(app) as state:
            assert state is not None
            assert state["answer"] > 0
    assert order == ["start", "stop"] * 2


async def test_locks_are_added_once() -> None:
    app = with_locks()
    with pytest.raises(ConfigurationError, match="already"):
        add_locks(app, connect("memory://"))


@pytest.mark.parametrize("given", ["sqlite:///x.db", connect, None], ids=type)
async def test_add_locks_without_connect_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"add_locks\(app, connect\(…\)\)"):
        add_locks(FastAPI(), given)  # type: ignore[arg-type]


async def test_without_its_lifespan_or_without_locks_it_is_a_bug() -> None:
    bare, idle = FastAPI(), with_locks()
    for app, what in ((bare, "no locks"), (idle, "no locks yet")):

        @app.get("/orders/{id}")
        async def get(held: Numbered) -> None: ...

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
            with pytest.raises(ConfigurationError, match=what):
                await http.get("/orders/7")


async def test_a_bad_path_parameter_is_reported_once() -> None:
    app = with_locks()

    @app.get("/orders/{id}")
    async def get(id: int, held: Numbered) -> None: ...  # noqa: A002

    @app.get("/undeclared/{id}")
    async def undeclared(held: Numbered) -> None: ...

    @app.get("/free/{id}")
    async def free(id: int) -> None: ...  # noqa: A002

    async with started(app) as http:
        answers = [
            await http.get(f"/{path}/x") for path in ("orders", "undeclared", "free")
        ]
    assert [answer.status_code for answer in answers] == [422] * 3
    assert len(answers[0].json()["detail"]) == 1
    assert answers[0].json() == answers[1].json() == answers[2].json()


async def test_hold_as_a_decorator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a dependency, not a decorator"):

        @hold("order:{id}")  # type: ignore[operator]
        async def get(id: str) -> None: ...  # noqa: A002


async def test_openapi_knows_what_is_answered() -> None:
    app, below = with_locks(), FastAPI()
    router = APIRouter(prefix="/shop", dependencies=[hold("shop:all")])

    @app.get("/orders/{id}", responses={423: {"description": "mine"}})
    async def get(id: int, held: Numbered) -> None: ...  # noqa: A002

    @router.post("/close")
    async def close() -> None: ...

    @app.get("/free")
    async def free() -> None: ...

    @below.put("/orders/{id:path}")
    async def put(held: Bare) -> None: ...

    app.include_router(router, prefix="/eu")
    app.mount("/below", below)
    async with started(app) as http:
        outer = (await http.get("/openapi.json")).json()["paths"]
        inner = (await http.get("/below/openapi.json")).json()["paths"]
    assert outer == app.openapi()["paths"]
    responses = outer["/orders/{id}"]["get"]["responses"]
    assert set(responses) == {"200", "422", "423", "503"}
    assert responses["423"]["description"] == "mine"
    assert "Retry-After" in responses["503"]["headers"]
    assert set(outer["/eu/shop/close"]["post"]["responses"]) == {"200", "423", "503"}
    assert set(outer["/free"]["get"]["responses"]) == {"200"}
    assert set(inner["/orders/{id}"]["put"]["responses"]) >= {"423", "503"}
