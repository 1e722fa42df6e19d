"""One task of one process: how long its cycles take."""

from __future__ import annotations

from typing import Any

from benchmarks.shared.scenario import Round


def cycle_times(
    round_: Round[Any], cycles: int, mode: str, key: str, *, one_core: bool = True
) -> list[float]:
    """Microseconds of each cycle in a row; ``one_core``: the client stays on one."""
    core = round_.core if one_core else None
    job = round_.job("alone", cycles=cycles, mode=mode, key=key, core=core)
    with round_.workers(job) as (worker,):
        worker.tell("go")
        return [seconds * 1e6 for seconds in worker.hear("took")["took"]]
