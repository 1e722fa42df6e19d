"""The harness of etcd."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.servers.fix_etcd import SharedEtcd
from tests.servers.plain_etcd import PlainEtcd

FOLDER = "/conformance"


class EtcdHarness(Harness):
    """``etcd://``: one member, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    has_foreigner = True
    answers_in = 0.2
    counts_fences = True
    server: ClassVar[SharedEtcd]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return keys of its own."""
        prefix = f"{uuid4().hex}:"
        # All processes have one clock, and a machine that may stand still.
        url = f"{self.server.url}{FOLDER}?clock_skew=0&request_timeout=20"
        return StoreLocation(url, prefix, PlainEtcd(self.server, FOLDER, prefix))
