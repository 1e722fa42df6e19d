"""The other process of a bench: ``python -m aiorwlock_remote.cli.bench.partner``.

After the plan comes one order, ``Go`` as JSON, answered by the turns that it took. End
of file = end, at once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, final

import anyio

from aiorwlock_remote import connect
from aiorwlock_remote.cli.bench.turns import take_turns
from aiorwlock_remote.cli.worker_process import READY, serve


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What the partner is for. ``lease`` in seconds."""

    url: str
    resource: tuple[str, str]
    lease: float
    loop: str


@final
@dataclass(frozen=True, slots=True)
class Go:
    """Take turns, as in ``take_turns``."""

    hold: float
    seconds: float

    def line(self) -> bytes:
        """As an order."""
        return json.dumps(asdict(self)).encode() + b"\n"


async def main(plan: Plan) -> None:
    """Connect, and do as told."""
    async with (
        connect(plan.url, lease=plan.lease) as locks,
        anyio.create_task_group() as group,
    ):
        print(READY, flush=True)
        lock = locks.mutex(*plan.resource)

        async def work(go: Go) -> None:
            print(json.dumps(await take_turns(lock, go.hold, go.seconds)), flush=True)

        while order := await anyio.to_thread.run_sync(sys.stdin.readline):
            group.start_soon(work, Go(**json.loads(order)))
        group.cancel_scope.cancel()


if __name__ == "__main__":
    serve()
    fields: dict[str, Any] = json.loads(sys.stdin.readline())
    anyio.run(main, Plan(**fields), backend=fields["loop"])
