"""Requests have a bounded wait, none is cancelled, and each costs no task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
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
