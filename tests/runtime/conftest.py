"""Locks behind a link with planned faults, and locks of the same store without it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aiorwlock_remote import Locks
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.testing.faults import FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory


def quick_store() -> FaultyMemory:
    """Return a new store, looked at every 20 ms."""
    poll_policy = PollPolicy(
        poll_min=0.02, poll_max=0.03, entry_ttl=1.0, claim_window=0.05
    )
    return FaultyMemory(poll_policy=poll_policy)


@pytest.fixture
def store() -> FaultyMemory:
    """This test's store."""
    return quick_store()


@pytest.fixture
def link(store: FaultyMemory) -> FaultyLink:
    """Its link."""
    return store.link


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    """Locks behind the link."""
    async with store.connect(lease=0.5) as locks:
        yield locks


@pytest.fixture
async def near(store: FaultyMemory, locks: Locks) -> AsyncIterator[Locks]:
    """Locks of the same store with nothing in between."""
    del locks
    async with store.connect_rival() as near:
        yield near
