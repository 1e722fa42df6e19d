"""Whatever becomes of giving a connection back, what was answered is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.cas.driver import external_pool
from aiorwlock_remote.cas.driver.external_pool import (
    DEFAULT_REQUEST_CONNECTIONS,
    BorrowedConnections,
    RequestConnections,
    ReturnMode,
)
from tests.cas.fake_driver import FakeDriver

pytestmark = pytest.mark.asyncio


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


def lines(owner: Owner, *, asks: bool = True) -> BorrowedConnections[str]:
    owner.return_mode = ReturnMode.BACKGROUND if asks else ReturnMode.BOUNDED
    return BorrowedConnections(owner, Ending(owner))


async def test_nobody_waits_until_it_is_back_but_who_closes() -> None:
    owner = Owner()
    taken = lines(owner)
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
    own = lines(owner)
    await own.close()
    with pytest.raises(BackendUnavailable, match="closed") as caught:
        await own.take()
    assert caught.value.nothing_done
    assert not owner.lent


async def test_one_that_is_back_at_once_is_waited_for() -> None:
    owner = Owner()
    owner.lets.set()
    taken = lines(owner, asks=False)
    await taken.give_back(await taken.take())
    assert owner.back == ["connection 1"]


@pytest.mark.parametrize("asks", [True, False])
async def test_one_that_does_not_get_back_is_hung_up(*, asks: bool) -> None:
    owner = Owner()
    taken = lines(owner, asks=asks)
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
    taken = lines(owner, asks=asks)
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


async def test_a_request_without_a_turn_says_that_nothing_was_done() -> None:
    lent = BorrowedConnections(Owner(), FakeDriver())
    own = RequestConnections(lent, 1, 0.01)
    connection = await own.take()
    with pytest.raises(BackendUnavailable, match="no connection was free") as caught:
        await own.take()
    assert caught.value.nothing_done
    own.abandon(connection)
    own.abandon(await own.take())
