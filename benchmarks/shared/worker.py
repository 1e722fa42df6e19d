"""A process of a scenario: ``python -m benchmarks.shared.worker '{"kind": …}'``.

It says ``ready``, waits for a line, does its job and says what came out, all in lines
of JSON: a peer in another language only needs to talk like this (see
``redis/go/main.go``).
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from benchmarks.loops import run
from benchmarks.shared.client import Open
from benchmarks.shared.jobs import RUN, Job


async def _work(job: Job) -> None:
    # Only what is measured gets imported.
    connect: Open = import_module(f"{job.family}.adapters").opener(job.peer)
    async with connect(job.url, job.lease) as client:
        await RUN[job.kind](client, job)


def main() -> None:
    """Do the job given as the first argument."""
    job = Job(**json.loads(sys.argv[1]))
    if job.core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {job.core})
    run(job.loop, _work, job)


if __name__ == "__main__":
    main()
