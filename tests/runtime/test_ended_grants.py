"""An ended grant is renewed no more, and no loss is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

import anyio
import pytest

from aiorwlock_remote import Held, Locks, LockTimeout
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.testing.faults import FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.renewals import renewed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("renewed_often"),
    pytest.mark.no_uvloop("the keeper has threads of its own"),
]

LEASE = 0.3
PULSES = 8
"""Renewals of a lease of 30 s, every 0.1 s: they take more than two of ``LEASE``."""


async def release(held: Held) -> None:
    await held.release()


async def move_and_release(held: Held) -> None:
    await (await held.downgrade()).release()


async def detach(held: Held) -> None:
    held.detach()


ENDS: dict[str, Callable[[Held], Awaitable[None]]] = {
    "release": release,
    "move": move_and_release,
    "detach": detach,
}


class EventLog:
    """Records which resources are renewed, and which losses are reported."""

    def __init__(self, link: FaultyLink) -> None:
        self.renewed: list[Hashable] = []
        self.lost: list[Held] = []
        link.lane = lambda resource: resource.label
        link.before_renewal = lambda label, _: self.renewed.append(label)


@pytest.fixture
def event_log(link: FaultyLink) -> EventLog:
    return EventLog(link)


async def end_in_all_ways(
    store: FaultyMemory, locks: Locks, event_log: EventLog
) -> None:
    """Acquire, and end each grant in its way; the last one with its ``Locks``."""
    for way, end in ENDS.items():
        lock = locks.rwlock("ended", way, lease=LEASE, on_lost=event_log.lost.append)
        await end(await lock.writer.acquire())
    async with store.connect(lease=LEASE, on_lost=event_log.lost.append) as closing:
        held = await closing.mutex("ended", "close").acquire()
    assert not held.valid


async def two_leases_pass(locks: Locks) -> None:
    """Wait for renewals of another grant, however long they take."""
    async with locks.mutex("order", "pulse", lease=30) as pulse:
        await renewed(pulse, PULSES)


async def test_after_its_end(
    store: FaultyMemory, link: FaultyLink, locks: Locks, event_log: EventLog
) -> None:
    """For two leases there are no renewals, no requests, and no ``on_lost``."""
    await end_in_all_ways(store, locks, event_log)
    event_log.renewed.clear()
    sent = len(link.sent)
    await two_leases_pass(locks)
    assert set(event_log.renewed) == {"order/pulse"}
    assert len(link.sent) == sent + 2, "of the other grant"
    assert event_log.lost == []


@pytest.mark.only_on("asyncio", "a control needs one loop")
async def test_a_lease_that_does_not_end_is_renewed(
    locks: Locks, event_log: EventLog
) -> None:
    """The control: a lease that only says that it has ended is renewed on."""
    lock = locks.mutex("ended", "detach", lease=LEASE, on_lost=event_log.lost.append)
    held = await lock.acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "end", lambda *_: True)
        patch.setattr(Session, "forget", lambda *_: None)
        held.detach()
    event_log.renewed.clear()
    await two_leases_pass(locks)
    assert "ended/detach" in event_log.renewed
    held.detach()


async def test_when_nobody_holds_or_waits(
    link: FaultyLink, locks: Locks, near: Locks, event_log: EventLog
) -> None:
    """Not even after waits that timed out; the store is looked at every 20 ms else."""
    async with near.mutex("order", 1):
        for _ in range(3):
            with pytest.raises(LockTimeout):
                await locks.mutex("order", 1).acquire(0.05)
        sent = len(link.sent)
        await anyio.sleep(0.1)
        assert len(link.sent) == sent
    async with locks.mutex("order", 1):
        pass
    sent = len(link.sent)
    event_log.renewed.clear()
    await two_leases_pass(near)
    assert len(link.sent) == sent
    assert event_log.renewed == []
