"""The etcd store on one member, by the conformance suite."""

from __future__ import annotations

import pytest

from aiorwlock_remote.testing.conformance import ConformanceSuite
from tests.conformance.stores.etcd import EtcdHarness
from tests.servers.fix_etcd import SharedEtcd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_turn("the bridge to trio is the library's own"),
    pytest.mark.no_uvloop("the driver leaves the loop to asyncio"),
]


@pytest.fixture(scope="module", autouse=True)
def _server(etcd_server: SharedEtcd) -> None:
    EtcdHarness.server = etcd_server


class TestEtcd(ConformanceSuite):
    """``etcd://``."""

    harness = EtcdHarness()
