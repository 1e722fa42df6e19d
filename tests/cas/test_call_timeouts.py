"""Calls have a bounded wait, each its own, by one timer."""

from __future__ import annotations

import asyncio
from itertools import count
from unittest.mock import patch

import pytest

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.cas.driver.pool import PooledRunner
from tests.cas.fake_driver import FakeDriver

pytestmark = pytest.mark.asyncio

SHORT = 0.05


class Calls(FakeDriver):
    """Connections are numbers. A call ends when its connection is aborted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(call_timeout=seconds)
        self.began: dict[int, float] = {}
        self.aborted: dict[int, float] = {}
        self.fails: set[int] = set()
        self.answers: dict[int, asyncio.Future[str]] = {}

    async def call(self, connection: int) -> str:
        loop = asyncio.get_running_loop()
        self.began[connection] = loop.time()
        self.answers[connection] = loop.create_future()
        return await self.answers[connection]

    def abort(self, connection: int) -> None:
        self.aborted[connection] = asyncio.get_running_loop().time()
        self.answers[connection].set_exception(OSError("aborted"))
        if connection in self.fails:
            raise OSError("it cannot be aborted")

    def is_healthy(self, connection: int) -> bool:
        return connection not in self.aborted


class Numbers:
    """A source of connections: the next number, or always the first."""

    def __init__(self, *, one: bool = False) -> None:
        self.at_once = 1
        self._numbers = count(0, 0 if one else 1)

    async def take(self) -> int:
        return next(self._numbers)

    async def give_back(self, connection: int) -> None: ...

    async def drop(self, connection: int) -> None: ...

    def abandon(self, connection: int) -> None: ...

    async def close(self) -> None: ...


async def test_each_is_ended_when_its_own_time_has_come() -> None:
    driver = Calls(SHORT)
    runner: PooledRunner[int] = PooledRunner(Numbers(), driver)
    calls = list[asyncio.Future[str]]()
    for number in range(4):
        calls.append(asyncio.ensure_future(runner.carry(driver.call)))
        await asyncio.sleep(SHORT / 4)
        if number == 1:
            driver.answers[number].set_result("in time")
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in results] == [
        *(BackendUnavailable, str, BackendUnavailable, BackendUnavailable)
    ]
    assert list(driver.aborted) == [0, 2, 3], "in order, and none that was over"
    for number, at in driver.aborted.items():
        assert at >= driver.began[number] + SHORT


async def test_a_connection_that_is_used_again_is_bounded_anew() -> None:
    driver = Calls(SHORT)
    runner: PooledRunner[int] = PooledRunner(Numbers(one=True), driver)

    async def quick(connection: int) -> str:
        del connection
        await asyncio.sleep(SHORT / 2)
        return "in time"

    assert await runner.carry(quick) == "in time"
    for _ in range(2):  # by the first call's timer, and when that timer has gone
        with pytest.raises(BackendUnavailable):
            await runner.carry(driver.call)
        assert driver.aborted[0] >= driver.began[0] + SHORT


async def test_one_that_cannot_be_ended_costs_the_others_nothing() -> None:
    driver, loop = Calls(SHORT), asyncio.get_running_loop()
    driver.fails = {0, 1}
    reported: list[object] = []
    loop.set_exception_handler(lambda _, about: reported.append(about["exception"]))
    runner: PooledRunner[int] = PooledRunner(Numbers(), driver)
    calls = [runner.carry(driver.call) for _ in range(3)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in results] == [BackendUnavailable] * 3
    assert len(reported) == 2


async def test_many_calls_make_one_timer() -> None:
    loop, driver = asyncio.get_running_loop(), Calls(60.0)
    runner: PooledRunner[int] = PooledRunner(Numbers(), driver)

    async def quick(connection: int) -> int:
        return connection

    with patch.object(loop, "call_at", wraps=loop.call_at) as timer:
        for number in range(1000):
            assert await runner.carry(quick) == number
    assert timer.call_count == 1
