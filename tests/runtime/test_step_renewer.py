"""The renewer of a store that has none of its own: renewals are steps."""

from __future__ import annotations

import pytest
from anyio.to_thread import run_sync

from aiorwlock_remote import connect
from aiorwlock_remote.backends.memory import MemoryDatabase, MemoryStore
from aiorwlock_remote.core.commands import Acquire, Claim, Command, Granted, Reply
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import (
    EventLoop,
    Grant,
    NotHeld,
    Pending,
    Renewal,
    RenewerBase,
    Resource,
    StepRenewer,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.runtime.event_loop import current_event_loop
from aiorwlock_remote.testing.conformance.actors import wait_until

pytestmark = pytest.mark.anyio

ORDER = resource("order", 1)
PATIENCE = 60.0


class PlainStore(MemoryStore):
    """Has no renewer of its own; ``fails``: what its steps raise."""

    fails: Exception | None = None

    def renewer(self) -> RenewerBase:
        return StoreBase.renewer(self)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if self.fails is not None:
            raise self.fails
        return super().step(resource, command)


class Plain:
    """A ``Backend`` of one such store."""

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> PlainStore:
        return PlainStore(MemoryDatabase(), loop, wake, settings)


def opened() -> PlainStore:
    settings = StoreSettings(client_id="here")
    return PlainStore(MemoryDatabase(), current_event_loop(), lambda *_: None, settings)


async def test_each_outcome_is_that_of_its_renewal() -> None:
    store = opened()
    claim = Claim("held", 30_000_000)
    assert isinstance(await store.step(ORDER, Acquire((claim,), Mode.WRITE)), Granted)
    batch = [Renewal(ORDER, ticket, 30_000_000) for ticket in ("other", "held")]
    lost, kept = await run_sync(store.renewer().renew, batch, PATIENCE)
    assert isinstance(lost, NotHeld)
    assert isinstance(kept, Grant)
    assert kept.ticket == "held"


async def test_a_step_that_raises_fails_its_renewal() -> None:
    store = opened()
    store.fails = ValueError("a defect")
    batch = [Renewal(ORDER, "held", None)]
    assert await run_sync(store.renewer().renew, batch, PATIENCE) == [store.fails]


async def test_what_is_not_answered_in_time_is_not_known() -> None:
    renewer = StepRenewer(opened())
    batch = [Renewal(ORDER, "held", None)]
    (late,) = renewer.renew(batch, 0.01)  # in the loop's own thread: it is blocked
    assert isinstance(late, BackendUnavailable)
    assert not late.nothing_done


async def test_a_renewer_that_gave_up_waits_no_more() -> None:
    renewer = StepRenewer(opened())
    renewer.give_up()
    (undone,) = renewer.renew([Renewal(ORDER, "held", None)], 3600.0)
    assert isinstance(undone, BackendUnavailable)


@pytest.mark.usefixtures("renewed_often")
async def test_a_grant_is_kept() -> None:
    async with connect(Plain()) as locks, locks.mutex("order", 1) as held:
        await wait_until(lambda: locks.statistics().renewals_sent >= 3, PATIENCE)
        held.check()
