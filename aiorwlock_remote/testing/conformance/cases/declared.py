"""What the store says of itself, which the other cases rely on."""

from __future__ import annotations

import pytest

from aiorwlock_remote import connect, registry
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.ports import Capability, EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.ports import Store as Port
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.waiting import MIN_POLL_INTERVAL
from aiorwlock_remote.testing.conformance.harness import StoreLocation, StoreUnderTest


class Probe:
    """Opens a site's store as ``connect`` does, and keeps it in sight."""

    def __init__(self, site: StoreLocation) -> None:
        self.opened: list[Port] = []
        self._site = site

    async def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Port:
        """As ``Backend``."""
        if self._site.backend is not None:
            store = await self._site.backend.open(host, bell, settings)
        else:
            address = parse(self._site.url)
            opener = registry.find(address.scheme)
            store = await opener(address, host, bell, settings)
        self.opened.append(store)
        return store


class DeclaredCases(Cases):
    """What the store says of itself."""

    @pytest.fixture
    def probe(self, store: StoreUnderTest) -> Probe:
        """The store, seen from inside."""
        return Probe(store.site)

    async def test_capabilities(self, store: StoreUnderTest, probe: Probe) -> None:
        """The store declares what its harness says: no case is left out unnoticed."""
        async with connect(probe, prefix=store.site.prefix):
            (opened,) = probe.opened
            assert opened.capabilities == self.harness.capabilities
            published = Capability.PUBLISHED_LAYOUT in opened.capabilities
            assert self.harness.has_foreigner or not published
            assert (store.site.foreigner is not None) == self.harness.has_foreigner

    async def test_pace(self, store: StoreUnderTest, probe: Probe) -> None:
        """A store that wakes is polled once a second at most; a place outlives it."""
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
        """``connect`` takes a ``Backend`` in place of a URL: the same store."""
        async with (
            connect(probe, prefix=store.site.prefix) as locks,
            store.connect() as others,
            locks.mutex("order", 1),
        ):
            assert await others.mutex("order", 1).try_acquire() is None
