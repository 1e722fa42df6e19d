"""Tickets of ``detach``: what they carry; anything else is refused unsent."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, LockLost, NotOwner, connect
from aiorwlock_remote.locks import tickets
from aiorwlock_remote.locks.held import share_ticket

pytestmark = pytest.mark.anyio

SECRET = "0" * 32
GOOD: list[Any] = ["order", "1", "write", SECRET, 30.0, 0.0, ""]
WRONG: dict[str, str] = {
    "a type with half a character": json.dumps(["\ud800", *GOOD[1:]]),
    "a type with NUL": json.dumps(["a\0b", *GOOD[1:]]),
    "a type that is none": json.dumps([1, *GOOD[1:]]),
    "no ticket of ours": json.dumps([*GOOD[:3], "readers", *GOOD[4:]]),
    "no mode": json.dumps([*GOOD[:2], "both", *GOOD[3:]]),
    "an infinite lease": json.dumps([*GOOD[:4], float("inf"), *GOOD[5:]]),
    "no lease at all": json.dumps([*GOOD[:4], float("nan"), *GOOD[5:]]),
    "a lease of nothing": json.dumps([*GOOD[:4], 0, *GOOD[5:]]),
    "a lease too long to read": f'["a","1","write","{SECRET}",{"9" * 5000},0,""]',
    "an infinite delay": json.dumps([*GOOD[:5], float("inf"), ""]),
    "a delay before": json.dumps([*GOOD[:5], -1, ""]),
    "no delay at all": json.dumps([*GOOD[:5], None, ""]),
    "a reason nobody can read": json.dumps([*GOOD[:6], "a\0b"]),
    "a reason that is none": json.dumps([*GOOD[:6], 1]),
    "of an unknown kind": json.dumps([*GOOD, "borrowed"]),
    "of one kind twice": json.dumps([*GOOD, "shared", "shared"]),
    "nested without end": "[" * 100_000,
    "no list": '{"a": 1}',
    "no JSON": "[",
}


def made(text: str) -> str:
    return "rwl1." + base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
async def test_refused_tickets(text: str) -> None:
    async with connect("memory://") as locks:
        with pytest.raises(ConfigurationError, match="detach"):
            await locks.adopt(made(text))


async def test_a_detached_ticket_is_read() -> None:
    assert tickets.read(made(json.dumps(GOOD))).lease == 30.0
    async with connect("memory://") as locks:
        ticket = (await locks.mutex("order", 1).acquire()).detach()
        await (await locks.adopt(ticket)).release()


async def test_lease_delay_and_reason_go_along() -> None:
    async with connect("memory://", lease=20) as locks:
        lock = locks.mutex("order", 1, lease=300, lock_delay=7.5)
        held = await locks.adopt((await lock.acquire(reason="refund")).detach())
        ticket = held.detach()
        again = tickets.read(ticket)
        assert (again.lease, again.lock_delay, again.reason) == (300, 7.5, "refund")
        await (await locks.adopt(ticket)).release()


async def test_a_shared_ticket_may_be_adopted_by_many(tmp_path: Path) -> None:
    """Beside its holder, with one fence; given away again it is shared as before."""
    url = f"memory://{tmp_path.name}"
    async with connect(url) as locks, connect(url) as others:
        held = await locks.rwlock("order", 1).writer.acquire()
        ticket = share_ticket(held)
        first, second = await others.adopt(ticket), await others.adopt(ticket)
        third = await locks.adopt(second.detach())
        for each in (held, first, third):
            assert (each.fence, each.holder) == (held.fence, held.holder)
            each.check()
        third.detach()
        assert await first.release()
        with pytest.raises(LockLost):
            await held.release()
        with pytest.raises(NotOwner):
            await others.adopt(ticket)


async def test_the_grant_after_a_conversion_is_not_shared() -> None:
    async with connect("memory://") as locks:
        held = await locks.rwlock("order", 1).writer.acquire()
        shared = await locks.adopt(share_ticket(held))
        moved = await shared.downgrade()
        ticket = moved.detach()
        assert not tickets.read(ticket).shared
        await (await locks.adopt(ticket)).release()
        held.detach()
