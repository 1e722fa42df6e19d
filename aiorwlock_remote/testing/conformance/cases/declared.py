"""Cases: a store declares the capabilities and polls on which other cases rely."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, connect
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.waiting import MIN_POLL_INTERVAL
from aiorwlock_remote.testing.conformance.harness import StoreLocation, open_location


class Probe:
    """Backend for ``connect``; ``opened`` lists the ``StoreBase`` objects it opened."""

    def __init__(self, site: StoreLocation) -> None:
        self.opened: list[StoreBase] = []
        self._site = site

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        store = await open_location(self._site, loop, wake, settings)
        self.opened.append(store)
        return store


class DeclaredCases(Cases):
    """A store declares capabilities and poll times; ``connect`` takes a ``Backend``."""

    @pytest.fixture
    def probe(self) -> Probe:
        return Probe(self.store.site)

    async def test_capabilities(self, probe: Probe) -> None:
        """A store declares exactly the capabilities that its harness expects."""
        async with connect(probe, prefix=self.store.site.prefix):
            (opened,) = probe.opened
            assert opened.capabilities == self.harness.capabilities
            published = Capability.PUBLISHED_LAYOUT in opened.capabilities
            assert self.harness.has_foreigner or not published
            assert (self.store.site.foreigner is not None) == self.harness.has_foreigner

    async def test_the_poll_policy(self, probe: Probe) -> None:
        """A store that notifies its waiters is polled at most once a second."""
        async with connect(probe, prefix=self.store.site.prefix):
            (opened,) = probe.opened
            wakes = Capability.NOTIFIES in opened.capabilities
            assert opened.poll_policy.poll_min >= (MIN_POLL_INTERVAL if wakes else 0)
            assert opened.poll_policy.poll_min <= opened.poll_policy.poll_max
            assert opened.poll_policy.entry_ttl >= 3 * opened.poll_policy.poll_max
            assert 0 < opened.poll_policy.claim_window < opened.poll_policy.entry_ttl
            pushes = Capability.PUSHES in opened.capabilities
            assert opened.poll_policy.pushes == pushes <= wakes

    async def test_a_connection_of_your_own(self, probe: Probe) -> None:
        """``connect(backend)`` opens the same store as ``connect(url)``."""
        async with (
            connect(probe, prefix=self.store.site.prefix) as locks,
            locks.mutex("order", 1),
        ):
            assert await self.others.mutex("order", 1).try_acquire() is None

    async def test_urls(self) -> None:
        """A URL with unknown option or scheme raises ``ConfigurationError``."""
        url = self.store.site.url
        bad: Any
        for bad in (
            f"{url}{'&' if '?' in url else '?'}nonsense=1",
            f"x{url}",
            url.partition("://")[2],
            "",
            "://",
            None,
            7,
            Path("locks.db"),
        ):
            await self.all_raise(ConfigurationError, partial(connect, bad))
