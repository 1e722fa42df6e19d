"""As many readers as a record can hold: who is in stays in, whatever happens."""

from __future__ import annotations

from random import Random
from secrets import token_hex

import pytest

from aiorwlock_remote import BackendError, connect
from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Granted,
    Release,
    Released,
    Renew,
    Renewed,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.ports import StoreBase
from tests.backends.oracle.programs import run
from tests.cas.tables import LEASE, ORDER, opened
from tests.servers.oracle.client import OracleUser

pytestmark = pytest.mark.asyncio


async def enter(store: StoreBase, count: int) -> list[str]:
    """So many readers at once; their tickets."""
    claims = tuple(Claim(token_hex(16), LEASE) for _ in range(count))
    reply = await store.step(ORDER, Acquire(claims, Mode.READ, client_id="g"))
    assert isinstance(reply, Granted)
    return [claim.ticket for claim in claims]


async def filled(store: StoreBase) -> list[str]:
    """As many sessions as the limit allows."""
    tickets: list[str] = []
    for count in (50, 5, 1):
        with pytest.raises(BackendError, match="more than a record can hold") as caught:
            while True:
                tickets += await enter(store, count)
        assert "let many tasks share one reader" in caught.value.hint
    return tickets


async def test_a_full_record_can_be_renewed_and_left(user: OracleUser) -> None:
    """Renewed one by one it becomes longer: leases that end at different times."""
    async with opened(user.url) as store:
        tickets = await filled(store)
        assert len(tickets) > 500
        chance = Random(7)
        items = tuple((t, LEASE + chance.randrange(LEASE)) for t in tickets)
        renewed = await store.step(ORDER, Renew(items))
        assert isinstance(renewed, Renewed)
        assert all(isinstance(outcome, Grant) for outcome in renewed.outcomes)
        with pytest.raises(BackendError):
            await enter(store, 1)
        for ticket in tickets[:3]:
            left = await store.step(ORDER, Release(ticket))
            assert isinstance(left, Released)
            assert left.held
        assert len((await store.look(ORDER)).record.grants) == len(tickets) - 3


async def test_requests_over_the_session_limit_fail_and_are_repeated(
    user: OracleUser,
) -> None:
    async with opened(user.url) as store, connect(user.url) as locks:
        tickets = await filled(store)
        reader = locks.rwlock("order", 42).reader
        rows = run(user, "SELECT version FROM doormans")
        with pytest.raises(BackendError, match="more than a record can hold"):
            await reader.acquire(timeout=20)
        assert run(user, "SELECT version FROM doormans") == rows  # nothing was changed
        for ticket in tickets[:40]:
            await store.step(ORDER, Release(ticket))
        async with reader.acquire(timeout=20):
            pass
