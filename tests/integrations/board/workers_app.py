"""An application with the live page, as uvicorn's workers import it."""

from __future__ import annotations

import logging
import os

from fastapi import FastAPI

from aiorwlock_remote import connect
from aiorwlock_remote.integrations.board.asgi import board_app
from aiorwlock_remote.integrations.fastapi import add_locks, get_locks, hold

# As docs/howto/logging.md says.
logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
logging.getLogger("aiorwlock_remote").setLevel(logging.INFO)

app = FastAPI()
add_locks(app, connect(os.environ["BOARD_STORE"]))
app.mount("/locks", board_app(lambda: get_locks(app), every=0.2, allow_break=True))


@app.get("/orders/{order_id}", dependencies=[hold("deploy:{order_id}", timeout=0)])
async def order(order_id: str) -> str:
    """Work on an order under its lock."""
    return order_id
