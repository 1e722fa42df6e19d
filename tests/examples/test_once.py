"""APScheduler in several processes: one of them runs the job."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from aiorwlock_remote.testing.memory import FaultyMemory
from tests.examples.test_tasks import start
from tests.servers.redis import RedisServer


@pytest.mark.slow
def test_apscheduler_report(fresh_redis: RedisServer, tmp_path: Path) -> None:
    """``apscheduler_report.py`` in three processes."""
    lines: list[str] = []
    with ExitStack() as stack:
        processes = [
            start(
                tmp_path,
                "apscheduler_report.py",
                EVERY="0.2",
                LOCKS_URL=fresh_redis.url,
            )
            for _ in range(3)
        ]
        for process in processes:
            stack.callback(process.communicate)
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            lines += [process.stdout.readline() for _ in range(4)]
    said = [line.partition(": ")[2].strip() for line in lines]
    assert sorted(said) == ["another process has it"] * 11 + ["sent"]


@pytest.mark.asyncio
async def test_a_decorated_job_of_apscheduler() -> None:
    """It is awaited by the scheduler; its error is the scheduler's to log."""
    store, runs = FaultyMemory(), 0
    events: asyncio.Queue[JobExecutionEvent] = asyncio.Queue()

    async with store.connect() as locks:

        @locks.once("report", period=86400)
        async def report() -> None:
            nonlocal runs
            runs += 1
            if runs == 2:
                raise ValueError

        scheduler = AsyncIOScheduler()
        scheduler.add_listener(events.put_nowait, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        scheduler.start()
        outcomes = []
        for _ in range(2):
            for _ in range(2):
                scheduler.add_job(report)  # now
                event = await asyncio.wait_for(events.get(), 20)
                outcomes.append(event.retval if event.exception is None else "error")
            store.advance(timedelta(days=1).total_seconds())
        scheduler.shutdown()
    assert outcomes == [True, False, "error", False]
    assert runs == 2
