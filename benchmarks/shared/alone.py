"""One task of one process: how long its cycles take."""

from __future__ import annotations

from typing import Any

from benchmarks.shared.scenario import Round


def cycle_times(round_: Round[Any], cycles: int, mode: str, key: str) -> list[float]:
    """Microseconds of each cycle in a row."""
    job = round_.job("alone", cycles=cycles, mode=mode, key=key, core=round_.core)
    with round_.workers(job) as (worker,):
        worker.tell("go")
        return [seconds * 1e6 for seconds in worker.hear("took")["took"]]
