"""Celery tasks that exclude each other on all workers.

``celery -A celery_task worker``: the module is loaded once, and the worker's child
processes are forked from it; each opens a connection of its own. A Redis broker needs
``celery[redis]``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery, Task

from aiorwlock_remote.sync import LockTimeout, connect

broker = os.environ.get("BROKER", "redis://localhost/1")
app = Celery("shop", broker=broker, backend=os.environ.get("RESULTS"))
app.conf.broker_transport_options = {
    name: os.environ["QUEUES"]
    for name in ("data_folder_in", "data_folder_out")
    if "QUEUES" in os.environ
}
locks = connect(os.environ.get("LOCKS_URL", "sqlite:///locks.db"))
ledger = Path(os.environ.get("LEDGER", "ledger.txt"))


@app.task(bind=True, max_retries=100)  # type: ignore[untyped-decorator]
def pay(self: Task, order: int) -> None:
    """Add one payment; if the order is busy, another attempt comes later."""
    try:
        with locks.mutex("order", order).acquire(timeout=5, reason="pay") as held:
            paid = int(ledger.read_text())
            time.sleep(0.01)
            held.check()
            ledger.write_text(str(paid + 1))
    except LockTimeout as exc:
        # Not `exc.retry_after`: that is the rest of the holder's lease, and only a
        # holder that died keeps the lock for so long.
        raise self.retry(exc=exc, countdown=1) from exc
