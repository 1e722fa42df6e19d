"""aiohttp: handlers that hold a lock while they work on an order.

    python examples/aiohttp_app.py
    curl -X POST 'localhost:8080/orders/7/payments?amount=5'

Start it twice, on two ports: both processes share the locks. Needs aiohttp.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from aiohttp import web
from ledger import Ledger

from aiorwlock_remote import connect
from aiorwlock_remote.integrations.aiohttp import add_locks, get_held, hold

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LEASE = float(os.environ.get("LOCKS_LEASE", "30"))

LEDGER = web.AppKey("LEDGER", Ledger)

routes = web.RouteTableDef()


@routes.post("/orders/{order}/payments")
@hold("order:{order:int}", timeout=2, reason="payment")
async def pay(request: web.Request) -> web.Response:
    """Add a payment. The query's ``work``: seconds it takes, to try things out."""
    order, amount = int(request.match_info["order"]), int(request.query["amount"])
    ledger, held = request.app[LEDGER], get_held(request)
    paid = await ledger.paid(order, held.fence) + amount
    await anyio.sleep(float(request.query.get("work", "0")))
    # Without the lock, another payment would be overwritten here.
    await ledger.set_paid(order, paid, held.fence)
    return web.json_response({"order": order, "paid": paid})


@routes.get("/orders/{order}")
@hold("order:{order:int}", mode="read", timeout=2)
async def show(request: web.Request) -> web.Response:
    """Read an order, together with other readers but with no writer."""
    order = int(request.match_info["order"])
    paid = await request.app[LEDGER].paid(order, get_held(request).fence)
    return web.json_response({"order": order, "paid": paid})


def make_app() -> web.Application:
    """Return the application, ready to run."""
    app = web.Application()
    add_locks(app, connect(LOCKS_URL, lease=LEASE))
    app[LEDGER] = Ledger(Path(os.environ.get("LEDGER", "ledger.db")))
    app.add_routes(routes)
    return app


if __name__ == "__main__":
    web.run_app(
        make_app(),
        host="127.0.0.1",
        port=int(os.environ.get("PORT", "8080")),
        # A client that disconnects cancels its handler, which releases the lock.
        handler_cancellation=True,
    )
