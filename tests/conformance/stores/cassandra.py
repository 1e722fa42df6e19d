"""The harness of Cassandra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from aiorwlock_remote.backends.cassandra import CassandraBackend
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.servers.fix_cassandra import Keyspace
from tests.servers.plain_cassandra import PlainCassandra


class CassandraHarness(Harness):
    """``cassandra://``: one node and table, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.HINTS
    )
    has_foreigner = True
    answers_in = 0.5
    short = 0.6
    remembers_fence = False
    # The driver's future of each request and the timer of its limit, about thirty
    # objects, refer to each other.
    garbage = 100
    each_phase_reads_the_clock = False  # its transactions outlive any failover
    keyspace: ClassVar[Keyspace]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return rows of its own."""
        prefix = f"{uuid4().hex}:"
        # All processes have one clock, and a machine that may stand still.
        url = f"{self.keyspace.url}?clock_skew=0&request_timeout=20"
        return StoreLocation(url, prefix, PlainCassandra(self.keyspace, prefix))


class PublishedCassandraHarness(CassandraHarness):
    """In the published table, through a user's session that all tests share.

    All ids of a type take turns there. The driver's timers and futures refer to each
    other.
    """

    garbage = 150

    def fresh(self, folder: Path) -> StoreLocation:
        """Return rows of its own."""
        session = self.keyspace.visit.session
        backend = CassandraBackend(session, self.keyspace.name, clock_skew=0)
        return replace(super().fresh(folder), backend=backend)
