"""The task of the loop: one run at a time, no wake-up lost, started again at need."""

from __future__ import annotations

import asyncio
import math

import anyio
import pytest

from aiorwlock_remote._util.background_task import BackgroundTask
from aiorwlock_remote.runtime.event_loop import current_event_loop

pytestmark = pytest.mark.anyio

UVLOOP_TICK = 0.001
"""Seconds by which its timers, counted in milliseconds, may end too soon."""


class Sleeper:
    """A task whose runs sleep, until ``turns`` of them were ended."""

    def __init__(self, turns: int = 1) -> None:
        self.loop = current_event_loop()
        self.task = BackgroundTask(self.loop, self.run)
        self.turns = turns
        self.begun = self.at_once = self.woken = self.ended = 0
        self.until = math.inf

    async def run(self) -> None:
        self.begun += 1
        assert self.begun - self.ended == 1, "two runs at a time"
        try:
            for _ in range(self.turns):
                await self.task.sleep_until(self.until)
                self.woken += 1
        finally:
            self.ended += 1


async def settled() -> None:
    await anyio.wait_all_tasks_blocked()


async def test_one_run_at_a_time_and_another_after_it() -> None:
    one = Sleeper()
    one.task.start()
    one.task.start()
    await settled()
    one.task.start()
    await settled()
    assert (one.begun, one.woken) == (1, 0)
    one.task.wake()
    await settled()
    assert (one.woken, one.ended) == (1, 1)
    one.task.wake()
    await settled()
    assert (one.begun, one.ended) == (2, 1)
    one.task.stop()
    await one.task.wait_closed()
    assert one.ended == 2
    one.task.wake()
    await settled()
    assert one.begun == 2


async def test_a_wake_up_before_the_sleep_is_not_lost() -> None:
    one = Sleeper()
    one.task.start()
    one.task.wake()
    await settled()
    assert (one.woken, one.ended) == (1, 1)


async def test_a_sleep_that_ends_in_time_is_left_alone() -> None:
    one = Sleeper()
    now = one.loop.clock.now()
    one.until = now + 600
    one.task.start()
    await settled()
    one.task.wake(by=now + 700)
    await settled()
    assert one.woken == 0
    one.task.wake(by=now + 500)
    await settled()
    assert one.woken == 1


async def test_a_task_sleeps_until_its_time() -> None:
    one = Sleeper()
    one.until = one.loop.clock.now() + 0.02
    one.task.start()
    with anyio.fail_after(20):
        while not one.ended:  # noqa: ASYNC110 - the clock tells
            await anyio.sleep(0.01)
    assert one.loop.clock.now() >= one.until - UVLOOP_TICK


async def test_stopped_before_it_began() -> None:
    one = Sleeper()
    one.task.start()
    one.task.stop()
    await one.task.wait_closed()
    assert one.begun == 0


@pytest.mark.only_on("asyncio", "trio cancels no single task")
async def test_cancelled_from_outside_it_can_be_started_again() -> None:
    one, before = Sleeper(), asyncio.all_tasks()
    one.task.start()
    await settled()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await settled()
    assert one.ended == 1
    one.task.start()
    await settled()
    assert one.begun == 2
    one.task.stop()
    await one.task.wait_closed()
