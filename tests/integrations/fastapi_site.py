"""The test application in FastAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from aiorwlock_remote import Connecting, Held, StaleFence
from aiorwlock_remote.integrations.fastapi import FenceDep, LocksDep, add_locks, hold
from tests.integrations.account import Account

Writing = Annotated[Held, hold("invoice:{id:int}", timeout=300, reason="secret")]
Reading = Annotated[Held, hold("invoice:{id:int}", mode="read", timeout=300)]
Briefly = Annotated[Held, hold("invoice:{id:int}", timeout=0.2, reason="secret")]
Streaming = Annotated[Held, hold("invoice:{id:int}", scope="request")]


def make(connecting: Connecting, account: Account) -> FastAPI:
    """Every way in that the tests need."""
    routes = APIRouter(prefix="/invoices/{id}")

    @routes.post("/pay")
    async def pay(id: int, held: Writing, work: float = 0) -> dict[str, int]:  # noqa: A002
        held.check()
        return {"invoice": id, "paid": await account.pay(work)}

    @routes.get("/stay")
    async def read(held: Reading) -> dict[str, int]:
        await account.stay()
        return {"fence": held.fence}

    @routes.post("/stay")
    async def stay(held: Writing) -> dict[str, int]:
        await account.stay()
        return {"fence": held.fence}

    @routes.post("/brief")
    async def brief(held: Briefly) -> dict[str, int]:
        return {"fence": held.fence}

    @routes.post("/stream")
    async def stream(held: Streaming) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield f"{held.fence}\n"
            await account.stay()
            yield "end\n"

        return StreamingResponse(body())

    @routes.post("/gone")
    async def gone(held: Writing) -> None:
        raise HTTPException(410, f"{held.mode}")

    @routes.post("/twice")
    async def twice(id: int, held: Writing, locks: LocksDep) -> None:  # noqa: A002
        async with locks.mutex("invoice", id):
            raise AssertionError(held)

    _more(routes, account)
    app = FastAPI()
    add_locks(app, connecting)
    app.include_router(routes)
    return app


def _more(routes: APIRouter, account: Account) -> None:
    @routes.put("/fenced")
    async def fenced(fence: FenceDep) -> dict[str, int]:
        if fence < account.highest:
            raise StaleFence(resource="invoice", fence=fence, highest=account.highest)
        account.highest = fence
        return {"fence": fence}

    @routes.post("/upload")
    async def upload(request: Request, held: Writing) -> dict[str, int]:
        size = 0
        async for part in request.stream():
            size += len(part)
        return {"size": size, "fence": held.fence}
