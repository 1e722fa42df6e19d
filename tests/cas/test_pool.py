"""Connections of our own: one request at a time, and none is left behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import anyio
import pytest
from sqlalchemy.exc import DBAPIError

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.cas.driver import external_pool
from aiorwlock_remote.cas.driver.external_pool import (
    DEFAULT_REQUEST_CONNECTIONS,
    BorrowedConnections,
    RequestConnections,
    ReturnMode,
    SaEnginePool,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool
from tests.cas.fake_driver import FakeDriver

pytestmark = pytest.mark.asyncio


Turn = asyncio.Task[int]


class Dialler(FakeDriver):
    """Connections are numbers; the next one is there when it is ``let``."""

    def __init__(self, *, fails: bool = False, seconds: float = 30.0) -> None:
        super().__init__(connect_timeout=seconds)
        self.let = asyncio.Event()
        self.fails = fails
        self.made = 0
        self.ended: list[int] = []
        self.dead: set[int] = set()

    async def connect(self) -> int:
        await self.let.wait()
        if self.fails:
            raise OSError("refused")
        self.made += 1
        return self.made

    def is_healthy(self, connection: int) -> bool:
        return connection not in self.dead

    async def close(self, connection: int) -> None:
        self.ended.append(connection)

    def abort(self, connection: int) -> None:
        self.ended.append(connection)


def lines(dialler: Dialler, most: int = 1) -> ConnectionPool[int]:
    return ConnectionPool(dialler, most)


async def refused(own: ConnectionPool[int], dialler: Dialler, many: int) -> list[Turn]:
    """So many who ask, and whom the server does not let in."""
    dialler.fails = True
    waiting = [asyncio.ensure_future(own.take()) for _ in range(many)]
    await anyio.wait_all_tasks_blocked()
    assert not any(turn.done() for turn in waiting)
    return waiting


async def test_one_is_used_again_and_by_one_at_a_time() -> None:
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler)
    first = await own.take()
    second = asyncio.ensure_future(own.take())
    await asyncio.sleep(0)
    assert not second.done()
    await own.give_back(first)
    assert await second == first
    await own.drop(first)
    assert await own.take() == 2
    assert dialler.ended == [1]


async def test_no_more_are_open_than_may_be() -> None:
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler, most=2)
    turns = [asyncio.ensure_future(own.take()) for _ in range(4)]
    await anyio.wait_all_tasks_blocked()
    assert [turn.done() for turn in turns] == [True, True, False, False]
    for turn in turns[:2]:
        await own.give_back(turn.result())
    assert sorted([await turn for turn in turns[2:]]) == [1, 2]
    assert dialler.made == 2


async def test_one_that_died_while_idle_is_not_used() -> None:
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler)
    await own.give_back(await own.take())
    dialler.dead.add(1)
    assert await own.take() == 2


async def test_one_that_died_on_its_way_is_not_used() -> None:
    """The event loop may stand still between the connect and the request."""
    dialler = Dialler()
    own = lines(dialler)
    waiting = asyncio.ensure_future(own.take())
    await anyio.wait_all_tasks_blocked()
    dialler.dead.add(1)
    dialler.let.set()
    assert await waiting == 2
    assert dialler.ended == [1]


async def test_waiters_for_a_connection_get_the_reason_that_there_is_none() -> None:
    dialler = Dialler(fails=True)
    dialler.let.set()
    own = lines(dialler)
    with pytest.raises(OSError, match="refused"):
        await own.take()
    dialler.fails = False
    assert await own.take() == 1


async def test_who_is_not_let_in_gets_what_comes_free() -> None:
    """As at a server that has as many clients as it takes."""
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler, most=3)
    first = await own.take()
    waiting = await refused(own, dialler, 2)
    await own.give_back(first)
    assert await waiting[0] == first
    dialler.fails = False
    await own.drop(first)
    assert await waiting[1] == 2


async def test_when_none_is_left_all_get_the_reason() -> None:
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler, most=3)
    first = await own.take()
    waiting = await refused(own, dialler, 4)
    await own.drop(first)
    for turn in waiting:
        with pytest.raises(OSError, match="refused"):
            await turn
    dialler.fails = False
    assert await own.take() == 2


async def test_a_connection_refused_for_too_long_is_reported_with_the_reason() -> None:
    dialler = Dialler(seconds=0.05)
    dialler.let.set()
    own = lines(dialler, most=2)
    await own.take()
    dialler.fails = True
    with pytest.raises(OSError, match="refused"):
        await own.take()


async def test_connecting_has_a_time_limit() -> None:
    own = lines(Dialler(seconds=0.05))
    with pytest.raises(BackendUnavailable) as caught:
        await own.take()
    assert caught.value.nothing_done


async def test_closed_it_gives_none_and_waits_for_none() -> None:
    own = lines(Dialler())
    own.abort()
    with pytest.raises(BackendUnavailable, match="closed") as caught:
        await own.take()
    assert caught.value.nothing_done


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_is_cancelled_while_it_waits_takes_none_along(when: str) -> None:
    """Programs cancel all their tasks, and release their locks afterwards."""
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler)
    first = await own.take()
    waiting = asyncio.ensure_future(own.take())
    await asyncio.sleep(0)
    if when == "before":
        waiting.cancel()
        await asyncio.wait({waiting})
    await own.give_back(first)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert await own.take() == first
    assert dialler.made == 1


@pytest.mark.parametrize("when", ["while it is opened", "when it is open"])
async def test_an_opening_that_is_cancelled_is_done_again(when: str) -> None:
    """For the request that waits, and the first one is not left open."""
    dialler = Dialler()
    own = lines(dialler)
    this = asyncio.current_task()
    waiting = asyncio.ensure_future(own.take())
    await anyio.wait_all_tasks_blocked()
    opening = asyncio.all_tasks() - {this, waiting}
    if when == "when it is open":
        dialler.let.set()
        while not dialler.made:  # noqa: ASYNC110 - a step of the loop or two
            await asyncio.sleep(0)
    for task in opening:
        task.cancel()
    dialler.let.set()
    last = await waiting
    assert dialler.ended == list(range(1, last))
    await own.give_back(last)
    assert await own.take() == last


async def test_when_all_tasks_are_cancelled_nothing_is_opened_any_more() -> None:
    """As at the end of ``asyncio.run``."""
    dialler = Dialler()
    own = lines(dialler, most=2)
    this = asyncio.current_task()
    waiting = [asyncio.ensure_future(own.take()) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    for task in asyncio.all_tasks() - {this}:
        task.cancel()
    dialler.let.set()
    for _ in range(9):
        await asyncio.sleep(0)
    assert all(turn.cancelled() for turn in waiting)
    assert asyncio.all_tasks() == {this}
    assert dialler.ended == list(range(1, dialler.made + 1))
    assert own.state == "0 open, 0 idle"


async def test_a_close_that_is_cancelled_ends_them_all() -> None:
    dialler = Dialler()
    dialler.let.set()
    own = lines(dialler, most=3)
    for connection in [await own.take() for _ in range(3)]:
        await own.give_back(connection)
    closing = asyncio.ensure_future(own.close())
    with patch.object(dialler, "close", AsyncMock(side_effect=asyncio.Event().wait)):
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
    assert closing.cancelled()
    assert sorted(dialler.ended) == [1, 2, 3]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_one_that_comes_after_the_end_is_ended(how: str) -> None:
    dialler = Dialler()
    own = lines(dialler)
    connecting = asyncio.ensure_future(own.connect())
    await asyncio.sleep(0)
    if how == "close":
        await own.close()
    else:
        own.abort()
    dialler.let.set()
    while not dialler.ended:  # noqa: ASYNC110 - a step of the loop or two
        await asyncio.sleep(0)
    assert dialler.made == 1
    connecting.cancel()


@pytest.mark.parametrize("end", ["connected", "failed", "cancelled"])
async def test_one_that_is_too_late_is_ended(end: str) -> None:
    """However the driver takes it; the loop has nothing to tell."""

    class Late(Dialler):
        async def connect(self) -> int:
            try:
                return await super().connect()
            except asyncio.CancelledError:
                if end == "connected":
                    return 7
                if end == "failed":
                    raise OSError("refused") from None
                raise

    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    dialler = Late(seconds=0.0)
    with pytest.raises(BackendUnavailable):
        await lines(dialler).take()
    await anyio.wait_all_tasks_blocked()
    assert dialler.ended == ([7] if end == "connected" else [])
    assert reported == []


# --- Whatever becomes of giving a connection back, what was answered is answered


@dataclass
class Owner:
    """Lends one name after the other; takes each back when it is let."""

    fails: bool = False
    most: int | None = None
    lets: asyncio.Event = field(default_factory=asyncio.Event)
    back: list[str] = field(default_factory=list[str])
    hung_up: list[str] = field(default_factory=list[str])
    lent: int = 0
    return_mode: ReturnMode = ReturnMode.AWAITED

    async def borrow(self) -> str:
        self.lent += 1
        return f"connection {self.lent}"

    async def give_back(self, connection: str) -> None:
        await self.lets.wait()
        if self.fails:
            raise OSError(connection)
        self.back.append(connection)

    async def drop(self, connection: str) -> None:
        raise OSError(connection)

    def abandon(self, connection: str) -> None:
        self.abort(connection)

    def abort(self, connection: str) -> None:
        self.hung_up.append(connection)
        self.lets.set()


class Ending(FakeDriver):
    """Ends connections of an owner."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(connect_timeout=1.0)
        self._owner = owner

    def abort(self, connection: str) -> None:
        self._owner.abort(connection)


def borrowed(owner: Owner, *, asks: bool = True) -> BorrowedConnections[str]:
    owner.return_mode = ReturnMode.BACKGROUND if asks else ReturnMode.BOUNDED
    return BorrowedConnections(owner, Ending(owner))


async def test_nobody_waits_until_it_is_back_but_who_closes() -> None:
    owner = Owner()
    taken = borrowed(owner)
    await taken.give_back(await taken.take())
    assert owner.back == []
    closing = asyncio.ensure_future(taken.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    owner.lets.set()
    await closing
    assert owner.back == ["connection 1"]


async def test_closed_it_lends_none() -> None:
    owner = Owner()
    own = borrowed(owner)
    await own.close()
    with pytest.raises(BackendUnavailable, match="closed") as caught:
        await own.take()
    assert caught.value.nothing_done
    assert not owner.lent


async def test_one_that_is_back_at_once_is_waited_for() -> None:
    owner = Owner()
    owner.lets.set()
    taken = borrowed(owner, asks=False)
    await taken.give_back(await taken.take())
    assert owner.back == ["connection 1"]


class OfTheDialect(Exception):
    """SQLAlchemy's dialects raise such exceptions from those of a driver."""

    __module__ = "sqlalchemy.dialects.postgresql.asyncpg"


@pytest.mark.parametrize("caused", [True, False])
async def test_the_driver_maps_its_own_error_of_an_engine(*, caused: bool) -> None:
    of_the_driver = OSError("refused")
    of_the_dialect = OfTheDialect("refused")
    of_the_dialect.__cause__ = of_the_driver if caused else None
    driver, seen = Ending(Owner()), list[object]()

    async def connect() -> None:
        raise DBAPIError(None, None, of_the_dialect)

    def mapped(error: Exception) -> Exception:
        seen.append(error)
        return BackendUnavailable(what="mapped")

    engine: Any = SimpleNamespace(connect=connect)
    with (
        patch.object(driver, "map_connect_error", mapped),
        pytest.raises(BackendUnavailable, match="mapped"),
    ):
        await SaEnginePool(engine, driver, resets=True).borrow()
    assert seen == [of_the_driver if caused else of_the_dialect]


async def test_one_that_is_broken_is_dropped() -> None:
    """Not every pool would notice, and lend it again."""
    owner = Owner()
    driver = Ending(owner)
    taken = BorrowedConnections(owner, driver)
    connection = await taken.take()
    dropped: list[str] = []

    async def drop(connection: str) -> None:
        dropped.append(connection)

    with (
        patch.object(driver, "is_healthy", return_value=False),
        patch.object(owner, "drop", drop),
    ):
        await taken.give_back(connection)
    assert (dropped, owner.back) == ([connection], [])
    await taken.close()


@pytest.mark.parametrize("asks", [True, False])
async def test_one_that_does_not_get_back_is_hung_up(*, asks: bool) -> None:
    owner = Owner()
    taken = borrowed(owner, asks=asks)
    with patch.object(external_pool, "RETURN_TIMEOUT", 0.05):
        await taken.give_back(await taken.take())
        await taken.close()
    assert owner.hung_up == ["connection 1"]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_failure_is_only_logged(
    caplog: pytest.LogCaptureFixture, *, asks: bool
) -> None:
    owner = Owner(fails=True)
    owner.lets.set()
    taken = borrowed(owner, asks=asks)
    await taken.give_back(await taken.take())
    await taken.close()
    assert [text.split()[0] for text in caplog.messages] == ["connection_not_returned"]


async def test_a_lender_that_fails_by_itself_is_no_error_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = Owner(fails=True)
    owner.lets.set()
    taken = BorrowedConnections(owner, FakeDriver(connect_timeout=1.0))
    await taken.give_back(await taken.take())
    await taken.drop(await taken.take())
    await taken.close()
    assert [text.split()[0] for text in caplog.messages] == [
        "connection_not_returned"
    ] * 2


@pytest.mark.parametrize(
    ("most", "for_requests"),
    [(1, 1), (2, 1), (3, 2), (5, 3), (10, 8), (None, DEFAULT_REQUEST_CONNECTIONS)],
)
async def test_requests_leave_connections_to_renewals(
    most: int | None, for_requests: int
) -> None:
    """However many wait for a turn, and each gets one in order."""
    owner = Owner()
    owner.lets.set()
    lent = BorrowedConnections(owner, FakeDriver())
    own = RequestConnections(lent, most, 30.0)
    taken = [await own.take() for _ in range(for_requests)]
    waiting = [asyncio.ensure_future(own.take()) for _ in range(2)]
    await asyncio.sleep(0)
    assert owner.lent == for_requests
    await lent.give_back(await lent.take())  # a renewal
    await own.give_back(taken.pop())
    await waiting[0]
    assert not waiting[1].done()
    own.abandon(await waiting[0])
    await own.drop(await waiting[1])
    for connection in taken:
        await own.give_back(connection)
    await own.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancelled_request_leaves_its_turn_to_the_next(when: str) -> None:
    owner = Owner()
    owner.lets.set()
    own = RequestConnections(borrowed(owner), 1, 30.0)
    connection = await own.take()
    waiting = asyncio.ensure_future(own.take())
    await asyncio.sleep(0)
    if when == "before":
        waiting.cancel()
        await asyncio.wait({waiting})
    await own.give_back(connection)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await own.give_back(await own.take())
    await own.close()
    assert len(owner.back) == owner.lent


@pytest.mark.parametrize("when", ["before it is lent", "when it is lent"])
async def test_what_is_lent_to_a_cancelled_request_goes_back(when: str) -> None:
    owner = Owner()
    owner.lets.set()
    lets, borrow = asyncio.Event(), owner.borrow

    async def lend() -> str:
        with anyio.CancelScope(shield=True):
            await lets.wait()
        return await borrow()

    with patch.object(owner, "borrow", lend):
        own = borrowed(owner)
        waiting = asyncio.ensure_future(own.take())
        await anyio.wait_all_tasks_blocked()
        if when == "when it is lent":
            lets.set()
            while not owner.lent:  # noqa: ASYNC110 - a step of the loop or two
                await asyncio.sleep(0)
        waiting.cancel()
        lets.set()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        await own.close()
        await anyio.wait_all_tasks_blocked()
    assert len(owner.back) == owner.lent


async def test_a_request_without_a_turn_says_that_nothing_was_done() -> None:
    lent = BorrowedConnections(Owner(), FakeDriver())
    own = RequestConnections(lent, 1, 0.01)
    connection = await own.take()
    with pytest.raises(BackendUnavailable, match="no connection was free") as caught:
        await own.take()
    assert caught.value.nothing_done
    own.abandon(connection)
    own.abandon(await own.take())
