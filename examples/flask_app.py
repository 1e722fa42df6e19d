"""A Flask application: each order is paid by one request at a time.

``gunicorn --preload`` may load it before its workers fork: each worker opens a
connection of its own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from flask import Flask
from flask.typing import ResponseReturnValue

from aiorwlock_remote.sync import LockTimeout, connect

app = Flask(__name__)
locks = connect(os.environ.get("LOCKS_URL", "sqlite:///locks.db"))
ledger = Path(os.environ.get("LEDGER", "ledger.txt"))


@app.post("/orders/<int:number>/pay")
def pay(number: int) -> ResponseReturnValue:
    """Pay an order; the answer names the fence of the lock."""
    try:
        with locks.mutex("order", number).acquire(timeout=10) as held:
            return {"paid": add(), "fence": held.fence, "process": os.getpid()}
    except LockTimeout:
        return {"error": "busy, try again"}, 503, {"Retry-After": "1"}


def add() -> int:
    """Read, wait, write: without the lock, payments would be lost."""
    paid = int(ledger.read_text())
    time.sleep(0.01)
    ledger.write_text(str(paid + 1))
    return paid + 1
