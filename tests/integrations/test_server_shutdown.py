"""A server that stops: requests that wait for a lock are answered at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations import aiohttp as in_aiohttp
from aiorwlock_remote.integrations._app_locks import AppLocks, on_stop_signal
from aiorwlock_remote.integrations.fastapi import (
    add_locks,
    get_locks,
    health,
    hold,
    stop_waiting,
)
from tests.integrations.asgi_connection import LEAVES, Line, scope_of
from tests.integrations.fastapi_apps import started, waiting
from tests.integrations.guests import until
from tests.servers.process import free_port

pytestmark = pytest.mark.asyncio

APP = Path(__file__).with_name("stopping_app.py")
WAITERS = 20
MANY = 1000


@asynccontextmanager
async def process(server: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    command = [sys.executable, str(APP), server, str(port)]
    running = subprocess.Popen(  # noqa: ASYNC220 - returns at once
        command, stderr=subprocess.PIPE, text=True
    )
    try:
        yield running, f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()
        assert running.stderr is not None
        running.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "number"),
    [
        ("uvicorn", signal.SIGTERM),
        ("uvicorn", signal.SIGINT),
        ("aiohttp", signal.SIGTERM),
    ],
)
async def test_a_real_server_sends_its_waiters_away(
    server: str, number: signal.Signals, tmp_path: Path
) -> None:
    file = tmp_path / "done"
    order = f"/orders/7?until={file}"
    async with (
        process(server) as (running, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
    ):

        async def reached(held: int, waiting: int) -> None:
            async def are() -> bool:
                try:
                    return (await http.get("/waiting")).text == f"[{held},{waiting}]"
                except httpx.ConnectError:
                    return False

            await until(are)

        await reached(0, 0)
        holder = asyncio.create_task(http.get(order))
        await reached(1, 0)
        waiters = [asyncio.create_task(http.get(order)) for _ in range(WAITERS)]
        await reached(1, WAITERS)
        running.send_signal(number)
        done = await asyncio.wait_for(asyncio.gather(*waiters), 30)
        assert {answer.status_code for answer in done} == {503}
        assert {answer.headers["retry-after"] for answer in done} == {"1"}
        # Work that had begun is done to its end.
        file.touch()
        assert (await holder).json() == "order/7"
        code = await asyncio.to_thread(running.wait, 30)
        assert code in (0, -number)
        assert running.stderr is not None
        said = running.stderr.read()
        assert f"aiorwlock_remote.http stopping waiting={WAITERS}" in said
        assert "unavailable" not in said
        assert "Traceback" not in said.replace("KeyboardInterrupt", "")


def an_app() -> FastAPI:
    app = FastAPI()
    add_locks(app, connect("memory://"))
    app.get("/health")(health)

    @app.post("/orders/{id}")
    async def post(held: Annotated[Held, hold("order:{id:int}", timeout=300)]) -> str:
        return held.resource

    return app


@pytest.mark.slow
async def test_a_thousand_waiters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiorwlock_remote")
    app = an_app()
    lines = [Line() for _ in range(MANY)]
    async with app.router.lifespan_context(app):
        async with get_locks(app).mutex("order", 7):
            calls = [
                asyncio.create_task(line.calls(app, scope_of("/orders/7")))
                for line in lines
            ]
            await waiting(app, MANY)
            began = time.monotonic()
            stop_waiting(app)
            stop_waiting(app)
            await asyncio.gather(*calls)
            assert time.monotonic() - began < 30
        assert {line.status for line in lines} == {503}
        await waiting(app, 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"stopping waiting={MANY}"]


async def test_after_the_stop_nobody_waits_until_the_next_start() -> None:
    app = an_app()
    for _ in range(2):
        async with started(app) as http:
            assert (await http.post("/orders/7")).status_code == 200
            assert (await http.get("/health")).status_code == 200
            stop_waiting(app)
            async with get_locks(app).mutex("order", 7):
                answer = await asyncio.create_task(http.post("/orders/7"))
            assert answer.status_code == 503
            assert (await http.get("/health")).status_code == 503


async def test_a_client_that_leaves_while_the_server_stops() -> None:
    app = an_app()
    line = Line()
    async with app.router.lifespan_context(app), get_locks(app).mutex("order", 7):
        call = asyncio.create_task(line.calls(app, scope_of("/orders/7")))
        await waiting(app, 1)
        line.sends(LEAVES)
        stop_waiting(app)
        await call
        await waiting(app, 0)


async def test_the_handlers_of_signals_are_as_before() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    async with AppLocks(connect("memory://")).running():
        with on_stop_signal(lambda: None):
            # Nobody handles SIGTERM here, so it ends the process as it always did.
            assert signal.getsignal(signal.SIGTERM) is before[0] is signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is not before[1]
    assert [signal.getsignal(number) for number in numbers] == before


async def test_a_handler_that_was_put_around_stays() -> None:
    called: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append("server"))
    try:
        with on_stop_signal(lambda: called.append("locks")):
            ours = signal.getsignal(signal.SIGTERM)
            assert callable(ours)
            signal.signal(signal.SIGTERM, partial(ours))
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == ["server", "locks"] * 2


async def test_in_another_thread_no_signal_is_touched() -> None:
    def start() -> None:
        async def run() -> None:
            app = an_app()
            async with app.router.lifespan_context(app):
                assert signal.getsignal(signal.SIGINT) is before

        asyncio.run(run())

    before = signal.getsignal(signal.SIGINT)
    await asyncio.to_thread(start)


async def test_without_locks_there_is_nothing_to_stop() -> None:
    with pytest.raises(ValueError, match="add_locks"):
        stop_waiting(FastAPI())
    with pytest.raises(ValueError, match="add_locks"):
        in_aiohttp.stop_waiting(web.Application())
