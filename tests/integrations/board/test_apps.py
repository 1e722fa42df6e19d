"""The live page within applications of FastAPI, Starlette and aiohttp."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp as ASGIApplication

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.integrations import aiohttp as in_aiohttp
from aiorwlock_remote.integrations import fastapi as in_fastapi
from aiorwlock_remote.integrations.board import aiohttp as board_of_aiohttp
from aiorwlock_remote.integrations.board import asgi
from aiorwlock_remote.integrations.board import board as boards
from aiorwlock_remote.integrations.board.guard import HEADERS
from aiorwlock_remote.integrations.board.site import BoardSite
from tests.cli.watch.fix_watch import holder, order
from tests.integrations.board.fix_board import FakeStore, until
from tests.servers.process import free_port

pytestmark = pytest.mark.asyncio
URL = "memory://board-apps"
TIMEOUT = 30.0


App = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def under_uvicorn(app: ASGIApplication) -> AsyncIterator[str]:
    """Serve an application, and end it by SIGTERM, which waits for open requests."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    # Uvicorn raises the signal again when it has ended.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT):
            await serving
        signal.signal(signal.SIGTERM, before)


@asynccontextmanager
async def under_aiohttp(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=TIMEOUT)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        async with asyncio.timeout(TIMEOUT):
            await runner.cleanup()


@asynccontextmanager
async def in_fastapi_app(*, allow_break: bool = False) -> AsyncIterator[str]:
    app = FastAPI()
    in_fastapi.add_locks(app, connect(URL))
    app.mount(
        "/locks",
        asgi.board_app(lambda: in_fastapi.get_locks(app), allow_break=allow_break),
    )
    async with under_uvicorn(app) as url:
        yield f"{url}/locks/"


@asynccontextmanager
async def in_starlette_app(*, allow_break: bool = False) -> AsyncIterator[str]:
    board = asgi.board_app(connect(URL), allow_break=allow_break)
    async with under_uvicorn(Starlette(routes=[Mount("/ops/locks", board)])) as url:
        yield f"{url}/ops/locks/"


@asynccontextmanager
async def in_aiohttp_app(*, allow_break: bool = False) -> AsyncIterator[str]:
    app = web.Application()
    in_aiohttp.add_locks(app, connect(URL))
    board = board_of_aiohttp.board_app(
        lambda: in_aiohttp.get_locks(app), allow_break=allow_break
    )
    app.add_subapp("/locks/", board)
    async with under_aiohttp(app) as url:
        yield f"{url}/locks/"


APPS = [in_fastapi_app, in_starlette_app, in_aiohttp_app]
every_app = pytest.mark.parametrize("app", APPS, ids=lambda app: app.__name__)


async def next_message(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next message of a stream."""
    async with asyncio.timeout(TIMEOUT):
        async for line in response.content:
            if line.startswith(b"data: "):
                message: dict[str, Any] = json.loads(line[6:])
                return message
    raise AssertionError("the stream has ended")


@every_app
async def test_the_page_in_an_application(
    app: App,
) -> None:
    async with connect(URL) as locks, app(allow_break=True) as url:
        http = httpx.AsyncClient(base_url=url, trust_env=False)
        async with http:
            page = await http.get("")
            assert page.status_code == 200
            assert {name: page.headers[name] for name in HEADERS} == dict(HEADERS)
            for name in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
                found = await http.get(name)
                assert (name, found.status_code) == (name, 200)
            assert (await http.get("format.js")).status_code == 200
            await refusals(http)
            await ends_what_is_seen(http, locks)


async def refusals(http: httpx.AsyncClient) -> None:
    strange = {"host": "evil.test"}
    for path in ("", "events", "board.js", "icon.svg"):
        assert (await http.get(path, headers=strange)).status_code == 421
    elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    assert (await http.get("events", headers=elsewhere)).status_code == 403
    expected = {
        ("GET", "break"): 405,
        ("POST", "break"): 403,
        ("POST", ""): 405,
        ("PUT", "events"): 405,
        ("HEAD", "events"): 200,
        ("GET", "nothing"): 404,
        ("GET", "..%2fmodel.py"): 404,
        ("GET", "index.html"): 404,
        ("TRACE", ""): 405,
        ("PROPFIND", "events"): 405,
        ("LOCK", "break"): 405,
    }
    for (method, path), status in expected.items():
        answer = await http.request(method, path)
        assert (method, path, answer.status_code) == (method, path, status)
        assert "content-security-policy" in answer.headers


def as_the_page(url: str) -> dict[str, str]:
    """Headers with which the page at this address asks to end a grant."""
    return {"origin": "/".join(url.split("/", 3)[:3]), "x-rwlock-board": "1"}


async def ends_what_is_seen(http: httpx.AsyncClient, locks: Locks) -> None:
    headers = as_the_page(str(http.base_url))
    await locks.acquire_mutex_lock("deploy", "db", "gluww")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{http.base_url}events") as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        message = await next_message(stream)
        (row,) = message["rows"]
        body: dict[str, Any] = {"row": row["row"], "reason": "db-2 was shut down"}
        body |= {key: row["holders"][0][key] for key in ("holder", "fence")}
        for change, status, broken in (
            ({"fence": "1"}, 200, False),
            ({"reason": ""}, 400, None),
            ({"reason": "x" * 20_000}, 413, None),
            ({}, 200, True),
            ({}, 200, False),
        ):
            answer = await http.post("break", json=body | change, headers=headers)
            assert (change, answer.status_code) == (change, status)
            if broken is not None:
                assert answer.json() == {"broken": broken}
            await asyncio.sleep(0)
        assert not await locks.mutex("deploy", "db").locked()
        without = headers | {"x-rwlock-board": ""}
        assert (await http.post("break", json=body, headers=without)).status_code == 403


@every_app
async def test_half_a_request_leaves_no_trace(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with app(allow_break=True) as url:
        host, _, path = url.removeprefix("http://").partition("/")
        fields = as_the_page(url) | {"content-type": "application/json"}
        head = [f"POST /{path}break HTTP/1.1", f"Host: {host}", "Content-Length: 99"]
        head += [f"{name}: {value}" for name, value in fields.items()]
        address = host.split(":")
        for body in ("", '{"row":'):
            _, half = await asyncio.open_connection(address[0], int(address[1]))
            half.write(("\r\n".join(head) + "\r\n\r\n" + body).encode())
            await half.drain()
            # Another one is answered, so this one has been read.
            async with aiohttp.ClientSession() as session:
                assert (await session.get(f"{url}nothing")).status == 404
            half.close()
            await half.wait_closed()
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


@every_app
async def test_an_application_ends_with_streams_open(
    app: App,
) -> None:
    async with aiohttp.ClientSession() as session:
        async with app() as url:
            stream = await session.get(f"{url}events")
            await next_message(stream)
            assert (await session.post(f"{url}break")).status == 403
        stream.close()


async def test_a_viewer_that_leaves_is_counted_out() -> None:
    site = BoardSite(connect(URL), every=0.2)
    async with (
        under_uvicorn(asgi.asgi_app(site)) as url,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(3):
            async with session.get(f"{url}/events") as stream:
                await next_message(stream)
                assert site.board.viewers >= 1
        await until(lambda: not site.board.viewers)
    await site.board.aclose()


async def test_one_that_does_not_read_holds_up_nobody() -> None:
    locks = [order(f"{number:0200}", holder()) for number in range(3000)]
    site = BoardSite(FakeStore(*locks), every=0.2)
    async with under_uvicorn(asgi.asgi_app(site)) as url:
        host, port = url.removeprefix("http://").split(":")
        _, lazy = await asyncio.open_connection(host, int(port), limit=1)
        lazy.write(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async with (
            aiohttp.ClientSession(read_bufsize=1 << 24) as session,
            session.get(f"{url}/events") as stream,
        ):
            messages = [await next_message(stream) for _ in range(4)]
            assert site.board.viewers == 2
        assert len(messages[0]["rows"]) == 3000
        lazy.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [asgi, board_of_aiohttp], ids=["asgi", "aiohttp"])
async def test_one_that_does_not_read_is_dropped(
    kind: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(boards, "SEND_TIMEOUT", 0.2)
    caplog.set_level("INFO", boards.log.name)
    locks = [order(f"{number:0200}", holder()) for number in range(5000)]
    app = kind.board_app(FakeStore(*locks))
    serve = under_uvicorn if kind is asgi else under_aiohttp
    async with serve(app) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((host, int(port)))
            lazy.send(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await until(lambda: "board_viewer_dropped" in caplog.text)


@pytest.mark.parametrize("given", ["memory://", None, 7])
async def test_objects_that_are_no_store_are_refused(given: object) -> None:
    for board_app in (asgi.board_app, board_of_aiohttp.board_app):
        make: Callable[..., object] = board_app
        with pytest.raises(ConfigurationError):
            make(given)
        with pytest.raises(ConfigurationError):
            make(connect(URL), hosts="ops.example")
        with pytest.raises(ConfigurationError):
            make(connect(URL), every=0.1)


async def test_the_title_is_text() -> None:
    evil = "</title><script>alert(1)</script>"
    site = BoardSite(connect(URL), title=evil, notice=evil)
    assert b"<script>alert" not in site._page()
