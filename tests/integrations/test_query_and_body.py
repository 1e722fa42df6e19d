"""Locks named by the query or the body of a request, which its client chooses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations import aiohttp as in_aiohttp
from aiorwlock_remote.integrations import fastapi as in_fastapi
from aiorwlock_remote.integrations import starlette as in_starlette
from aiorwlock_remote.integrations._http import MAX_TEXT
from tests.integrations import test_aiohttp
from tests.integrations.fastapi_apps import started

pytestmark = pytest.mark.asyncio

QUERY, BODY = "order:{shop}/{query.id:int}", "order:{shop}/{body.id:int}"
TEXT = "order:{query.name:str}"

Serve = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


class Order(BaseModel):
    """What a handler of FastAPI reads from the body."""

    id: int


@asynccontextmanager
async def with_fastapi() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    in_fastapi.add_locks(app, connect("memory://"))

    @app.get("/{shop}")
    async def get(id: int, held: Annotated[Held, in_fastapi.hold(QUERY)]) -> str:  # noqa: A002
        assert held.name.endswith(f"/{id}")
        return held.name

    @app.post("/{shop}")
    async def post(
        order: Order, held: Annotated[Held, in_fastapi.hold(BODY)]
    ) -> list[Any]:
        return [held.name, order.id]

    @app.put("/{shop}")
    async def put(
        request: Request, held: Annotated[Held, in_fastapi.hold(BODY)]
    ) -> list[Any]:
        return [held.name, json.loads(await request.body())["id"]]

    @app.patch("/{shop}")
    async def patch(held: Annotated[Held, in_fastapi.hold(TEXT)]) -> str:
        return held.name

    async with started(app) as http:
        yield http


@asynccontextmanager
async def with_starlette() -> AsyncIterator[httpx.AsyncClient]:
    def named(request: Any) -> str:  # noqa: ANN401
        return in_starlette.get_held(request).name

    @in_starlette.hold(QUERY)
    async def get(request: Any) -> Response:  # noqa: ANN401
        return JSONResponse(named(request))

    @in_starlette.hold(BODY)
    async def post(request: Any) -> Response:  # noqa: ANN401
        return JSONResponse([named(request), int((await request.json())["id"])])

    @in_starlette.hold(TEXT)
    async def patch(request: Any) -> Response:  # noqa: ANN401
        return JSONResponse(named(request))

    routes = [
        Route("/{shop}", get, methods=["GET"]),
        Route("/{shop}", post, methods=["POST", "PUT"]),
        Route("/{shop}", patch, methods=["PATCH"]),
    ]
    app = Starlette(routes=routes)
    in_starlette.add_locks(app, connect("memory://"))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test"
        ) as http,
    ):
        yield http


@asynccontextmanager
async def with_aiohttp() -> AsyncIterator[httpx.AsyncClient]:
    @in_aiohttp.hold(QUERY)
    async def get(request: web.Request) -> web.Response:
        return web.json_response(in_aiohttp.get_held(request).name)

    @in_aiohttp.hold(BODY)
    async def post(request: web.Request) -> web.Response:
        name = in_aiohttp.get_held(request).name
        return web.json_response([name, int((await request.json())["id"])])

    @in_aiohttp.hold(TEXT)
    async def patch(request: web.Request) -> web.Response:
        return web.json_response(in_aiohttp.get_held(request).name)

    app = web.Application()
    in_aiohttp.add_locks(app, connect("memory://"))
    app.router.add_get("/{shop}", get)
    app.router.add_post("/{shop}", post)
    app.router.add_put("/{shop}", post)
    app.router.add_patch("/{shop}", patch)
    async with test_aiohttp.started(app) as http:
        yield http


each = pytest.mark.parametrize("serve", [with_fastapi, with_starlette, with_aiohttp])


@each
async def test_one_order_has_one_lock(serve: Serve) -> None:
    async with serve() as http:
        for spelling in ("7", "007"):
            assert (await http.get(f"/eu?id={spelling}")).json() == "eu/7"
        for value in (7, "7", "007"):
            for call in (http.post, http.put):
                answer = await call("/eu", json={"id": value})
                name, _ = answer.json()
                assert name == "eu/7"
        assert (await http.patch("/eu?name=J%C3%BCrg/7")).json() == "Jürg/7"


@each
async def test_a_query_that_names_two_locks(serve: Serve) -> None:
    """Its handler may read the other one."""
    async with serve() as http:
        for query in ("id=7&id=8", "id=7&id=7", "", "id=", "id=x", "id=1e3", "ID=7"):
            assert (await http.get(f"/eu?{query}")).status_code == 422, query
        for name in ("", "%00", "a%0Ab", "%E2%80%AE", "x" * (MAX_TEXT + 1)):
            assert (await http.patch(f"/eu?name={name}")).status_code == 422, name
        assert (await http.patch(f"/eu?name={'x' * MAX_TEXT}")).status_code == 200


async def test_a_charset_that_names_another_lock() -> None:
    """``request.json()`` of aiohttp decodes as the client says, others do not.

    In UTF-7, ``+AGk-d`` is ``id``, and of two members the last one counts.
    """
    kind = "content-type"
    async with with_aiohttp() as http:
        for body, charset, status in (
            (b'{"id": 7, "+AGk-d": 8}', "utf-7", 422),
            (b'{"id": 7, "x": "\xe9"}', "latin-1", 422),
            ('{"id": 7, "x": "\u00e9"}'.encode(), "latin-1", 200),
            (b'{"id": 7}', "utf-16", 422),
            (b'{"id": 7}', "no-such", 422),
            (b'{"id": 7}', "utf-7", 200),
        ):
            headers = {kind: f"application/json; charset={charset}"}
            answer = await http.post("/eu", content=body, headers=headers)
            assert answer.status_code == status, (body, charset)
            assert status != 200 or answer.json() == ["eu/7", 7]


BAD = [
    *(b"", b"{", b"[]", b"[7]", b"null", b"7", b'"id"', b"{}", b"\xff"),
    *(b'{"id": null}', b'{"id": true}', b'{"id": 7.5}', b'{"id": [7]}', b'{"ID": 7}'),
    *(b'{"id": {"id": 7}}', b'{"id": ""}', b'{"id": " 7"}', b'{"id": "7_0"}'),
    b'{"id": ' + b"9" * 101 + b"}",
    b'{"id": ' + b"9" * 5000 + b"}",
    b"[" * 100_000,
]


@each
async def test_a_body_that_names_no_lock(serve: Serve) -> None:
    async with serve() as http:
        for body in BAD:
            answer = await http.put("/eu", content=body)
            assert answer.status_code == 422, body[:20]
