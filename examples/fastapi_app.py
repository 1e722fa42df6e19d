"""FastAPI: handlers that hold a lock while they work on an order.

    python examples/fastapi_app.py
    curl -X POST 'localhost:8000/orders/7/payments?amount=5'

Start it twice, on two ports: both processes share the locks. Needs fastapi, uvicorn.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, TypedDict

import anyio
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from ledger import Ledger

from aiorwlock_remote import LockError, Locks, LockTimeout, connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LEASE = float(os.environ.get("LOCKS_LEASE", "30"))
LEDGER = Path(os.environ.get("LEDGER", "ledger.db"))


class State(TypedDict):
    """What the lifespan gives to every request."""

    locks: Locks
    ledger: Ledger


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[State]:
    """One ``Locks`` for the process; leaving releases whatever is still held."""
    async with connect(LOCKS_URL, lease=LEASE) as locks:
        yield {"locks": locks, "ledger": Ledger(LEDGER)}


def get_locks(request: Request) -> Locks:
    """The ``Locks`` of the lifespan."""
    locks: Locks = request.state.locks
    return locks


def get_ledger(request: Request) -> Ledger:
    """The ledger of the lifespan."""
    ledger: Ledger = request.state.ledger
    return ledger


LocksDep = Annotated[Locks, Depends(get_locks)]
LedgerDep = Annotated[Ledger, Depends(get_ledger)]

app = FastAPI(lifespan=lifespan)


@app.exception_handler(LockError)
async def lock_problem(_: Request, exc: LockError) -> JSONResponse:
    """Not obtained in time: 423 and ``Retry-After``. Lost, or store down: 503."""
    headers = {}
    if isinstance(exc, LockTimeout):
        headers["Retry-After"] = str(max(1, math.ceil(exc.retry_after or 1)))
    title = HTTPStatus(exc.status_hint).phrase
    return JSONResponse(
        # str(exc) names hosts and processes: for the log, not for clients.
        {"type": "about:blank", "title": title, "status": exc.status_hint},
        status_code=exc.status_hint,
        headers=headers,
        media_type="application/problem+json",
    )


@app.post("/orders/{order}/payments")
async def pay(
    order: int, amount: int, locks: LocksDep, ledger: LedgerDep, work: float = 0
) -> dict[str, int]:
    """Add a payment. ``work``: how many seconds it takes, to try things out."""
    lock = locks.rwlock("order", order).writer
    async with lock.acquire(timeout=2, reason="payment") as held:
        paid = await ledger.paid(order, held.fence) + amount
        await anyio.sleep(work)  # without the lock, updates would be lost here
        await ledger.set_paid(order, paid, held.fence)
    return {"order": order, "paid": paid}


@app.get("/orders/{order}")
async def show(order: int, locks: LocksDep, ledger: LedgerDep) -> dict[str, int]:
    """Read an order: any number of readers at a time, no writer among them."""
    lock = locks.rwlock("order", order).reader
    async with lock.acquire(timeout=2, reason="show") as held:
        return {"order": order, "paid": await ledger.paid(order, held.fence)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
