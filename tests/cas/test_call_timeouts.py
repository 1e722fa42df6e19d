"""Calls have a bounded wait, each its own, by one timer."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from aiorwlock_remote.cas.driver.pool import CallTimeouts

pytestmark = pytest.mark.asyncio

SHORT = 0.05


class Ended:
    """Connections are numbers: who was ended, and when."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.fails: set[int] = set()
        self.heard = asyncio.Event()

    def __call__(self, connection: int) -> None:
        self.at[connection] = asyncio.get_running_loop().time()
        self.heard.set()
        if connection in self.fails:
            raise OSError("it cannot be ended")

    async def number(self, count: int) -> None:
        while len(self.at) < count:
            self.heard.clear()
            await self.heard.wait()


async def test_each_is_ended_when_its_own_time_has_come() -> None:
    ended, loop = Ended(), asyncio.get_running_loop()
    deadlines = CallTimeouts(SHORT, ended)
    due: dict[int, float] = {}
    for connection in range(4):
        due[connection] = loop.time() + SHORT
        deadlines.begin(connection)
        if connection == 1:
            deadlines.cancel(connection)
        await asyncio.sleep(SHORT / 4)
    await ended.number(3)
    assert list(ended.at) == [0, 2, 3], "in order, and none that was over"
    assert all(at >= due[connection] for connection, at in ended.at.items())
    assert [deadlines.missed(connection) for connection in ended.at] == [True] * 3


async def test_a_reused_timeout_is_bounded_anew() -> None:
    ended, loop = Ended(), asyncio.get_running_loop()
    deadlines = CallTimeouts(SHORT, ended)
    deadlines.begin(1)
    deadlines.cancel(1)
    await asyncio.sleep(SHORT / 2)
    due = loop.time() + SHORT
    deadlines.begin(1)
    assert not deadlines.missed(1)
    await ended.number(1)
    assert ended.at[1] >= due
    deadlines.cancel(1)
    deadlines.begin(1)  # no timer is there any more
    await asyncio.sleep(0)
    ended.at.clear()
    await ended.number(1)


async def test_one_that_cannot_be_ended_costs_the_others_nothing() -> None:
    ended, loop = Ended(), asyncio.get_running_loop()
    ended.fails = {1, 2}
    reported: list[object] = []
    loop.set_exception_handler(lambda _, about: reported.append(about["exception"]))
    deadlines = CallTimeouts(SHORT, ended)
    for connection in (1, 2, 3):
        deadlines.begin(connection)
    await ended.number(3)
    assert len(reported) == 2


async def test_many_calls_make_one_timer() -> None:
    loop = asyncio.get_running_loop()
    deadlines = CallTimeouts(60.0, Ended())
    with patch.object(loop, "call_at", wraps=loop.call_at) as timer:
        for connection in range(1000):
            deadlines.begin(connection)
            deadlines.cancel(connection)
    assert timer.call_count == 1
