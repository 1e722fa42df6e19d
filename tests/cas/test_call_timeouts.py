"""Requests have a bounded wait, none is cancelled, and each costs no task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from unittest.mock import patch

import pytest

from aiorwlock_remote import BackendUnavailable, ConfigurationError
from aiorwlock_remote.cas.driver.pool import PooledRunner
from tests.cas.fake_driver import FakeDriver

pytestmark = pytest.mark.asyncio


SHORT = 0.05


class Phone:
    """A connection whose driver raises in a call under way when it is hung up."""

    def __init__(self) -> None:
        self.well = True
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        self.well = False
        if not self.answer.done():
            self.answer.set_exception(OSError("lost"))


async def ask(phone: Phone) -> str:
    return await phone.answer


class Exchange(FakeDriver):
    """Hangs up phones."""

    def abort(self, connection: Phone) -> None:
        connection.abort()

    def is_healthy(self, connection: Phone) -> bool:
        return connection.well


@dataclass
class FakeSource:
    """A source that lends the given connection, and records what comes of it."""

    takes: Phone | Exception
    at_once: int = 1
    came: list[str] = field(default_factory=list[str])

    async def take(self) -> Phone:
        if isinstance(self.takes, Exception):
            raise self.takes
        return self.takes

    async def give_back(self, connection: Phone) -> None:
        assert connection is self.takes
        self.came.append("given back")

    async def drop(self, connection: Phone) -> None:
        assert connection is self.takes
        self.came.append("dropped")

    def abandon(self, connection: Phone) -> None:
        raise AssertionError(connection)

    async def close(self) -> None:
        """Nothing is there."""


def carrier(source: FakeSource, seconds: float = 60.0) -> PooledRunner[Phone]:
    return PooledRunner(source, Exchange(call_timeout=seconds))


async def test_a_late_call_is_hung_up_and_not_cancelled() -> None:
    source = FakeSource(Phone())
    ended: list[type[BaseException]] = []

    async def work(phone: Phone) -> str:
        try:
            return await ask(phone)
        except BaseException as exc:
            ended.append(type(exc))
            raise

    began = asyncio.get_running_loop().time()
    with pytest.raises(BackendUnavailable, match="db does not answer") as caught:
        await carrier(source, SHORT).carry(work)
    assert asyncio.get_running_loop().time() >= began + SHORT
    assert not caught.value.nothing_done
    assert ended == [OSError]
    assert source.came == ["dropped"]


async def test_an_answer_in_the_last_moment_counts() -> None:
    """Its connection is not used again."""
    phone = Phone()
    source = FakeSource(phone)
    asyncio.get_running_loop().call_later(SHORT / 2, phone.answer.set_result, "yes")

    async def slow(phone: Phone) -> str:
        said = await ask(phone)
        while phone.well:  # noqa: ASYNC110 - until the timer has seen it
            await asyncio.sleep(SHORT / 10)
        return said

    assert await carrier(source, SHORT).carry(slow) == "yes"
    assert source.came == ["dropped"]


@pytest.mark.parametrize(
    ("error", "came"), [(OSError("cut"), "dropped"), (ValueError("no"), "given back")]
)
async def test_errors_of_the_driver_are_mapped(error: Exception, came: str) -> None:
    phone = Phone()
    source = FakeSource(phone)
    phone.answer.set_exception(error)
    with pytest.raises(BackendUnavailable, match=f"db: {error}") as caught:
        await carrier(source).carry(ask)
    assert caught.value.__cause__ is error
    assert source.came == [came]


async def test_without_a_connection_nothing_was_done() -> None:
    with pytest.raises(BackendUnavailable, match="db: refused") as caught:
        await carrier(FakeSource(OSError("refused"))).carry(ask)
    assert caught.value.nothing_done
    ours = ConfigurationError(what="closed")
    with pytest.raises(ConfigurationError) as refused:
        await carrier(FakeSource(ours)).carry(ask)
    assert refused.value is ours


async def test_when_the_loop_ends_the_connection_goes() -> None:
    source = FakeSource(Phone())
    carrying = asyncio.ensure_future(carrier(source).carry(ask))
    await asyncio.sleep(0)
    carrying.cancel()
    await asyncio.wait({carrying})
    assert carrying.cancelled()
    assert source.came == ["dropped"]


async def test_a_call_costs_neither_a_task_nor_a_timer() -> None:
    phone, loop = Phone(), asyncio.get_running_loop()
    phone.answer.set_result("yes")
    source = FakeSource(phone)
    carries = carrier(source)
    with (
        patch.object(loop, "call_at", wraps=loop.call_at) as timer,
        patch.object(loop, "create_task", wraps=loop.create_task) as task,
    ):
        for _ in range(100):
            await carries.carry(ask)
    assert (task.call_count, timer.call_count) == (0, 1)
    assert source.came == ["given back"] * 100


# ------------------------ Calls have a bounded wait, each its own, by one timer


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
