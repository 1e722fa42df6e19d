"""A client process of the soak: ``python -m tests.soak.process URL DIR NAME PLAN``.

The plan is JSON (``Plan``). Writes its history to ``DIR/NAME.jsonl`` and its counters
to ``DIR/NAME.counts``. At SIGTERM its tasks end their turns, it sweeps its own names,
and ends.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import anyio

from tests.soak import client, threads
from tests.soak.client import Plan
from tests.soak.planted import PLANTED


def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    logging.basicConfig(filename=folder / f"{name}.log", level=logging.ERROR)
    with PLANTED[plan.plant]() if plan.plant else nullcontext():
        if plan.loop == "threads":
            threads.run(url, folder, name, plan)
            return
        anyio.run(
            partial(client.run, url, folder, name, plan),
            backend="trio" if plan.loop == "trio" else "asyncio",
            backend_options={"use_uvloop": True} if plan.loop == "uvloop" else {},
        )


if __name__ == "__main__":
    url, folder, name, given = sys.argv[1:]
    main(url, Path(folder), name, Plan(**json.loads(given)))
