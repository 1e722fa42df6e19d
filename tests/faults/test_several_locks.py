"""Several locks at once, wanted by many tasks of several processes."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.testing.checker import check_history
from aiorwlock_remote.testing.history import Event, Granted, Refused
from tests.faults.several import LOCKS, TYPE
from tests.faults.workers import WorkerPool
from tests.judge.fix_judge import GoJudge

pytestmark = pytest.mark.slow

LOOPS = ("asyncio", "trio", "asyncio", "trio")


async def held(url: str) -> list[str]:
    """Who holds or waits for anything."""
    async with connect(url) as locks:
        return [repr(seen) async for seen in locks.list()]


def run_workers(url: str, folder: Path, **plan: float | str) -> list[Event]:
    """What four processes of ten tasks have made of it."""
    with WorkerPool(url, folder, program="tests.faults.several") as pool:
        for loop in LOOPS:
            pool.start(loop=loop, **plan)
        pool.join()
        return pool.history()


def test_a_thousand_random_choices_of_eight(
    url: str, tmp_path: Path, go_judge: GoJudge
) -> None:
    """Nobody waits for ever, nothing is left, and each lock kept its promise."""
    events = run_workers(url, tmp_path)
    assert not [event for event in events if isinstance(event, Refused)]
    asked = {event.resource for event in events if isinstance(event, Granted)}
    assert asked == {f"{TYPE}/{number}" for number in range(LOCKS)}
    assert check_history(events).violations == ()
    assert go_judge(sorted(tmp_path.glob("*.jsonl")), 30_000).ok
    assert anyio.run(held, url) == []


@pytest.mark.parametrize("url", ["redis"], indirect=True)
def test_one_by_one_in_any_order_they_wait_for_each_other(
    url: str, tmp_path: Path
) -> None:
    """The control: without an order there is a deadlock, shown by the time-outs."""
    events = run_workers(url, tmp_path, sorted=0, timeout=2, turns=2)
    assert [event for event in events if isinstance(event, Refused)]
    assert check_history(events).violations == ()
    assert anyio.run(held, url) == []
