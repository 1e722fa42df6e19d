"""FastAPI: handlers that hold a lock while they work on an order.

    python examples/fastapi_app.py
    curl -X POST 'localhost:8000/orders/7/payments?amount=5'

Start it twice, on two ports: both processes share the locks. Needs fastapi, uvicorn.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import anyio
import uvicorn
from fastapi import Depends, FastAPI
from ledger import Ledger

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations.fastapi import add_locks, hold

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LEASE = float(os.environ.get("LOCKS_LEASE", "30"))
LEDGER = Path(os.environ.get("LEDGER", "ledger.db"))

app = FastAPI()
add_locks(app, connect(LOCKS_URL, lease=LEASE))


async def get_ledger() -> Ledger:
    """Return the ledger with the orders."""
    return Ledger(LEDGER)


LedgerDep = Annotated[Ledger, Depends(get_ledger)]
Paying = Annotated[Held, hold("order:{order:int}", timeout=2, reason="payment")]
Showing = Annotated[Held, hold("order:{order:int}", mode="read", timeout=2)]


@app.post("/orders/{order}/payments")
async def pay(
    order: int, amount: int, held: Paying, ledger: LedgerDep, work: float = 0
) -> dict[str, int]:
    """Add a payment. ``work``: seconds that it takes, to try things out."""
    paid = await ledger.paid(order, held.fence) + amount
    # Without the lock, another payment would be overwritten here.
    await anyio.sleep(work)
    await ledger.set_paid(order, paid, held.fence)
    return {"order": order, "paid": paid}


@app.get("/orders/{order}")
async def show(order: int, held: Showing, ledger: LedgerDep) -> dict[str, int]:
    """Read an order, together with other readers but with no writer."""
    return {"order": order, "paid": await ledger.paid(order, held.fence)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
