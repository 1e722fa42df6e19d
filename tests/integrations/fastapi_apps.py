"""Small applications of FastAPI, for what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import APIRouter, FastAPI

from aiorwlock_remote import connect
from aiorwlock_remote.integrations.fastapi import add_locks, get_locks
from tests.integrations.guests import until


@asynccontextmanager
async def started(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Its lifespan and its handlers, without a server between."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test"
        ) as http:
            yield http


def with_locks(*routers: APIRouter) -> FastAPI:
    app = FastAPI()
    add_locks(app, connect("memory://"))
    for router in routers:
        app.include_router(router)
    return app


async def waiting(app: FastAPI, count: int) -> None:
    """Until so many tasks wait for order 7."""
    lock = get_locks(app).mutex("order", 7)

    async def reached() -> bool:
        return sum(q.waiting for q in (await lock.info()).queue) == count

    await until(reached)
