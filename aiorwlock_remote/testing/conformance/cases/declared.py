"""Cases: what the store declares, on which the other cases rely."""

from __future__ import annotations

import pytest

from aiorwlock_remote import connect
from aiorwlock_remote.ports import Capability, EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.ports import Store as Port
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.waiting import MIN_POLL_INTERVAL
from aiorwlock_remote.testing.conformance.harness import (
    StoreLocation,
    StoreUnderTest,
    open_location,
)


class Probe:
    """A backend that opens the store of a location, and keeps it for the case."""

    def __init__(self, site: StoreLocation) -> None:
        self.opened: list[Port] = []
        self._site = site

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Port:

        store = await open_location(self._site, host, bell, settings)
        self.opened.append(store)
        return store


class DeclaredCases(Cases):
    """The store's capabilities, its polls, and ``connect`` with a ``Backend``."""

    @pytest.fixture
    def probe(self, store: StoreUnderTest) -> Probe:
        """A backend that shows the store behind ``connect``."""
        return Probe(store.site)

    async def test_capabilities(self, store: StoreUnderTest, probe: Probe) -> None:
        """A store declares what its harness says, so that no case is left out."""
        async with connect(probe, prefix=store.site.prefix):
            (opened,) = probe.opened
            assert opened.capabilities == self.harness.capabilities
            published = Capability.PUBLISHED_LAYOUT in opened.capabilities
            assert self.harness.has_foreigner or not published
            assert (store.site.foreigner is not None) == self.harness.has_foreigner

    async def test_pace(self, store: StoreUnderTest, probe: Probe) -> None:
        """A store that notifies is polled once a second at most."""
        async with connect(probe, prefix=store.site.prefix):
            (opened,) = probe.opened
            wakes = Capability.NOTIFIES in opened.capabilities
            assert opened.pace.poll_min >= (MIN_POLL_INTERVAL if wakes else 0)
            assert opened.pace.poll_min <= opened.pace.poll_max
            assert opened.pace.entry_ttl >= 3 * opened.pace.poll_max
            assert 0 < opened.pace.claim_window < opened.pace.entry_ttl

    async def test_a_connection_of_your_own(
        self, store: StoreUnderTest, probe: Probe
    ) -> None:
        """A ``connect`` with a ``Backend`` opens the same store as one with a URL."""
        async with (
            connect(probe, prefix=store.site.prefix) as locks,
            store.connect() as others,
            locks.mutex("order", 1),
        ):
            assert await others.mutex("order", 1).try_acquire() is None
