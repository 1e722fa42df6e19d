"""Locks on pairs of keys (S3), by the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import ConformanceSuite, StoreLocation
from tests.conformance.stores.redis import RedisHarness
from tests.recipes.pair_store import OnPairs
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.only_on("trio", "the scripts are the same")


@pytest.fixture(scope="module", autouse=True)
def _server(redis_server: RedisServer) -> None:
    RedisHarness.server = redis_server


class PairHarness(RedisHarness):
    """In this process alone, and no other program: tests/recipes has those."""

    capabilities = Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL | Capability.PUSHES
    has_foreigner = False
    has_semaphores = False

    def fresh(self, folder: Path) -> StoreLocation:
        """Keys of its own."""
        site = super().fresh(folder)
        return StoreLocation(site.url, site.prefix, backend=OnPairs(site.url))


class TestRedisPairs(ConformanceSuite):
    """``redis://``, every lock on a pair of keys."""

    harness = PairHarness()
