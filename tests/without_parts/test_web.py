"""Starlette and FastAPI without the private parts that the integrations use."""

from __future__ import annotations

import asyncio
from typing import Annotated

import httpx
import pytest
from fastapi import BackgroundTasks, FastAPI
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations import fastapi as of_fastapi
from aiorwlock_remote.integrations import starlette as of_starlette
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.without_parts.locking import differing

pytestmark = pytest.mark.asyncio


def client(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@of_starlette.hold("order:{id:int}", timeout=0)
async def answer(request: Request) -> Response:
    return PlainTextResponse(of_starlette.get_held(request).resource)


async def test_a_mounted_application_is_found_under_its_middlewares(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    below = Starlette(routes=[Route("/{id}", answer)])
    mount = Mount("/below", below, middleware=[Middleware(GZipMiddleware)])
    monkeypatch.delattr(mount, "_base_app")
    # Its own property for routes stands on it, too.
    monkeypatch.setattr(Mount, "routes", [])
    app = Starlette(routes=[mount])
    of_starlette.add_locks(app, connect(FaultyMemory()))
    async with app.router.lifespan_context(app), client(app) as http:
        assert (await http.get("/below/7")).text == "order/7"
        async with of_starlette.get_locks(app).mutex("order", 7):
            busy = await asyncio.create_task(http.get("/below/7"))
    assert busy.status_code == 423
    assert busy.headers["content-type"] == "application/problem+json"
    assert differing(caplog) == ["Mount._base_app"]


async def test_routes_without_a_dependant(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    of_fastapi.add_locks(app, connect(FaultyMemory()))

    locked: list[bool] = []

    async def look() -> None:
        mutex = of_fastapi.get_locks(app).mutex("order", 7)
        locked.append(await mutex.locked())

    @app.get("/orders/{id}")
    async def show(
        held: Annotated[Held, of_fastapi.hold("order:{id:int}", timeout=0)],
        tasks: BackgroundTasks,
    ) -> str:
        # As nobody knows whether a dependency commits behind the response.
        tasks.add_task(look)
        return held.resource

    @app.get("/others/{id}")
    async def other(
        held: Annotated[Held, of_fastapi.hold("order:{id:int}", timeout=0)],
    ) -> str:
        return held.resource

    for route in app.routes:
        if isinstance(route, APIRoute):
            route.__dict__["renamed"] = route.__dict__.pop("dependant")
    async with app.router.lifespan_context(app), client(app) as http:
        assert (await http.get("/orders/7")).json() == "order/7"
        async with of_starlette.get_locks(app).mutex("order", 7):
            busy = await asyncio.create_task(http.get("/others/7"))
        assert busy.status_code == 423
        assert (await http.get("/orders/x")).status_code in {404, 422}
    assert locked == [True]
    assert differing(caplog) == ["APIRoute.dependant"]
