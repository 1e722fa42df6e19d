"""Requests leave at once; those that cannot be sent fail at once."""

from __future__ import annotations

import asyncio

import pytest

from aiorwlock_remote._util.driver_loop import SameLoop
from aiorwlock_remote.cas.driver.executor import (
    REQUESTS_PER_CONNECTION,
    DriverExecutor,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from aiorwlock_remote.cas.table_cas import StoredRow, Values
from aiorwlock_remote.core.row import StatementResult
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.cas.fake_driver import FakeDriver

pytestmark = pytest.mark.asyncio

FOUND = StoredRow(done=True, now=0)
GONE = BackendUnavailable(what="gone")


class Dialler(FakeDriver):
    """Connects after a while."""

    def __init__(self) -> None:
        super().__init__(connect_timeout=5.0, call_timeout=5.0)
        self.dialled = 0

    async def connect(self) -> object:
        self.dialled += 1
        await asyncio.sleep(0)
        return object()

    def is_broken(self, error: BaseException) -> bool:
        del error
        return True

    def map_error(self, error: BaseException) -> BackendUnavailable:
        del error
        return GONE


class FakeExecutor(DriverExecutor):
    """Notes what was sent, and under which task it went on."""

    def __init__(self, most: int = 1) -> None:
        self.dialler = Dialler()
        self.own: ConnectionPool[object] = ConnectionPool(self.dialler, most)
        super().__init__(SameLoop(current_event_loop()), self.own, self.dialler)
        self.sent: list[object] = []
        self.tasks: list[object] = []

    async def check_server(self, logged_in: object) -> None:
        """There is none."""

    async def run_row(self, statement: object, connection: object) -> StatementResult:
        raise ValueError(statement, connection)

    async def swap(self, values: Values, connection: object) -> StoredRow:
        del connection
        self.sent.append(values["n"])
        await asyncio.sleep(0)
        self.tasks.append(asyncio.current_task())
        return FOUND

    async def look(self, values: Values, connection: object) -> StoredRow:
        del connection
        raise ValueError(values)


class Meeting(FakeExecutor):
    """Answers so many at once, or nobody."""

    def __init__(self, parties: int) -> None:
        super().__init__(most=8)
        self.barrier = asyncio.Barrier(parties)

    async def swap(self, values: Values, connection: object) -> StoredRow:
        async with self.barrier:
            return await super().swap(values, connection)


async def test_a_request_leaves_before_its_caller_goes_on() -> None:
    executor = FakeExecutor()
    first = executor.ask("swap", {"n": 1})
    assert executor.sent == []  # there is no connection yet
    assert await first == FOUND
    second = executor.ask("swap", {"n": 2})
    assert executor.sent == [1, 2]
    third = executor.ask("swap", {"n": 3})
    assert executor.sent == [1, 2]  # the connection is in use
    assert not second.done()
    assert [await second, await third] == [FOUND, FOUND]
    assert executor.sent == [1, 2, 3]
    assert asyncio.current_task() not in executor.tasks


async def test_what_cannot_be_sent_fails_at_once() -> None:
    executor = FakeExecutor()
    await executor.ask("swap", {"n": 1})
    assert executor.ask("look", {}).error is GONE
    await executor.own.close()
    closed = executor.ask("swap", {"n": 2}).error
    assert isinstance(closed, BackendUnavailable)
    assert closed.nothing_done


async def test_a_caller_that_is_cancelled_leaves_it_alone() -> None:
    executor = FakeExecutor()
    await executor.ask("swap", {"n": 1})
    asked = []

    async def caller() -> None:
        asked.append(executor.ask("swap", {"n": 2}))
        await asked[0]

    task = asyncio.ensure_future(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert await asked[0] == FOUND


async def test_many_requests_go_over_some_connections() -> None:
    """So that a process may hold many locks far away from its database."""
    executor = Meeting(parties=4)
    many = executor.ask_all(
        "swap", [{"n": n} for n in range(4 * REQUESTS_PER_CONNECTION)]
    )
    async with asyncio.timeout(5):
        assert [await one for one in many] == [FOUND] * 4 * REQUESTS_PER_CONNECTION
    assert executor.dialler.dialled == 4


async def test_a_few_requests_go_over_one_connection() -> None:
    executor = Meeting(parties=1)
    few = executor.ask_all("swap", [{"n": n} for n in range(REQUESTS_PER_CONNECTION)])
    assert [await one for one in few] == [FOUND] * REQUESTS_PER_CONNECTION
    assert executor.sent == list(range(REQUESTS_PER_CONNECTION))
    assert executor.dialler.dialled == 1


async def test_one_that_is_not_answered_holds_up_its_own_connection_only() -> None:
    class Stuck(FakeExecutor):
        async def swap(self, values: Values, connection: object) -> StoredRow:
            if values["n"] == 0:
                await free.wait()
            return await super().swap(values, connection)

    free, executor = asyncio.Event(), Stuck(most=2)
    stuck, *rest = executor.ask_all(
        "swap", [{"n": n} for n in range(2 * REQUESTS_PER_CONNECTION)]
    )
    async with asyncio.timeout(5):
        for one in rest:
            assert await one == FOUND
    assert not stuck.done()
    free.set()
    assert await stuck == FOUND
