"""aiohttp: handlers that hold a lock while they work on an order.

    python examples/aiohttp_app.py
    curl -X POST 'localhost:8080/orders/7/payments?amount=5'

Start it twice, on two ports: both processes share the locks. Needs aiohttp.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler
from ledger import Ledger

from aiorwlock_remote import LockError, Locks, LockTimeout, connect

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LEASE = float(os.environ.get("LOCKS_LEASE", "30"))
LEDGER_PATH = Path(os.environ.get("LEDGER", "ledger.db"))

LOCKS = web.AppKey("LOCKS", Locks)
LEDGER = web.AppKey("LEDGER", Ledger)

routes = web.RouteTableDef()


async def open_locks(app: web.Application) -> AsyncIterator[None]:
    """One ``Locks`` for the process; leaving releases whatever is still held."""
    async with connect(LOCKS_URL, lease=LEASE) as locks:
        app[LOCKS] = locks
        app[LEDGER] = Ledger(LEDGER_PATH)
        yield


@web.middleware
async def lock_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Not obtained in time: 423 and ``Retry-After``. Lost, or store down: 503."""
    try:
        return await handler(request)
    except LockError as exc:
        headers = {}
        if isinstance(exc, LockTimeout):
            headers["Retry-After"] = str(max(1, math.ceil(exc.retry_after or 1)))
        title = HTTPStatus(exc.status_hint).phrase
        return web.json_response(
            # str(exc) names hosts and processes: for the log, not for clients.
            {"type": "about:blank", "title": title, "status": exc.status_hint},
            status=exc.status_hint,
            headers=headers,
            content_type="application/problem+json",
        )


@routes.post("/orders/{order:[0-9]+}/payments")
async def pay(request: web.Request) -> web.Response:
    """Add a payment. ``work``: how many seconds it takes, to try things out."""
    order = int(request.match_info["order"])
    amount = int(request.query["amount"])
    work = float(request.query.get("work", "0"))
    ledger = request.app[LEDGER]
    lock = request.app[LOCKS].rwlock("order", order).writer
    async with lock.acquire(timeout=2, reason="payment") as held:
        paid = await ledger.paid(order, held.fence) + amount
        await anyio.sleep(work)  # without the lock, updates would be lost here
        await ledger.set_paid(order, paid, held.fence)
    return web.json_response({"order": order, "paid": paid})


@routes.get("/orders/{order:[0-9]+}")
async def show(request: web.Request) -> web.Response:
    """Read an order: any number of readers at a time, no writer among them."""
    order = int(request.match_info["order"])
    lock = request.app[LOCKS].rwlock("order", order).reader
    async with lock.acquire(timeout=2, reason="show") as held:
        paid = await request.app[LEDGER].paid(order, held.fence)
    return web.json_response({"order": order, "paid": paid})


def make_app() -> web.Application:
    """The application, ready to run."""
    app = web.Application(middlewares=[lock_problems])
    app.cleanup_ctx.append(open_locks)
    app.add_routes(routes)
    return app


if __name__ == "__main__":
    web.run_app(
        make_app(),
        host="127.0.0.1",
        port=int(os.environ.get("PORT", "8080")),
        # A client that hangs up cancels its handler; the lock is released then.
        handler_cancellation=True,
    )
