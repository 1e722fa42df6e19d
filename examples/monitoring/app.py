"""FastAPI with metrics of its locks at /metrics, for one process or many.

    python examples/monitoring/app.py
    curl -X POST localhost:8000/orders/7/refund
    curl localhost:8000/metrics

Needs fastapi, uvicorn, prometheus-client.
"""

from __future__ import annotations

import os
from typing import Annotated

import anyio
import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from aiorwlock_remote import Held, connect
from aiorwlock_remote.integrations.fastapi import add_locks, hold
from aiorwlock_remote.integrations.prometheus import (
    PrometheusObserver,
    workers_registry,
)

LOCKS_URL = os.environ.get("LOCKS_URL", "sqlite:///locks.db")
LEASE = float(os.environ.get("LOCKS_LEASE", "30"))

app = FastAPI()
add_locks(app, connect(LOCKS_URL, lease=LEASE, observers=[PrometheusObserver()]))

Refunding = Annotated[Held, hold("order:{order:int}", timeout=2, reason="refund")]


@app.post("/orders/{order}/refund")
async def refund(order: int, held: Refunding, work: float = 0) -> dict[str, int]:
    """Refund an order. ``work``: seconds that it takes, to try things out."""
    await anyio.sleep(work)
    return {"order": order, "fence": held.fence}


@app.get("/metrics")
def metrics() -> Response:
    """Tell Prometheus the figures of this process, or of all workers."""
    several = "PROMETHEUS_MULTIPROC_DIR" in os.environ
    registry = workers_registry() if several else REGISTRY
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
