"""An application for test_server_shutdown.py: `python stopping_app.py SERVER PORT`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import uvicorn
from aiohttp import web
from fastapi import FastAPI, Response

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.integrations import aiohttp as in_aiohttp
from aiorwlock_remote.integrations import fastapi as in_fastapi

NAME, WAIT = "order:{id:int}", 300.0


async def done(until: str) -> None:
    """The work: it ends when there is a file of this name."""
    while not Path(until).exists():  # noqa: ASYNC110, ASYNC240 - it gives no event
        await asyncio.sleep(0.01)


def counts(locks: Locks) -> str:
    """How many hold, and how many wait."""
    statistics = locks.statistics()
    held, waiting = statistics.held, statistics.waiting
    return f"[{sum(held.values())},{sum(waiting.values())}]"


def with_fastapi() -> FastAPI:
    app = FastAPI()
    in_fastapi.add_locks(app, connect("memory://"))

    @app.get("/orders/{id}")
    async def work(
        held: Annotated[Held, in_fastapi.hold(NAME, timeout=WAIT)], until: str
    ) -> str:
        await done(until)
        return held.resource

    @app.get("/waiting")
    async def waiting() -> Response:
        return Response(counts(in_fastapi.get_locks(app)))

    return app


def with_aiohttp() -> web.Application:
    app = web.Application()
    in_aiohttp.add_locks(app, connect("memory://"))

    @in_aiohttp.hold(NAME, timeout=WAIT)
    async def work(request: web.Request) -> web.Response:
        await done(request.query["until"])
        return web.json_response(in_aiohttp.get_held(request).resource)

    async def waiting(request: web.Request) -> web.Response:
        return web.Response(text=counts(in_aiohttp.get_locks(request)))

    app.router.add_get("/orders/{id}", work)
    app.router.add_get("/waiting", waiting)
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    port = int(sys.argv[2])
    if sys.argv[1] == "uvicorn":
        uvicorn.run(with_fastapi(), port=port, log_level="warning")
    else:
        web.run_app(
            with_aiohttp(),
            host="127.0.0.1",
            port=port,
            access_log=None,
            handler_cancellation=True,
        )
