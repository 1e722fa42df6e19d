"""The harness of MariaDB."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.conformance.stores.postgresql import unhurried
from tests.servers.plain import PlainMariadb


class MariadbHarness(Harness):
    """``mariadb://``: one database and its two tables, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.HINTS
        | Capability.ROW_LOCKS
        | Capability.TRANSACTIONS
    )
    has_foreigner = True
    answers_in = 0.5
    short = 0.6
    kept = 2.0  # a commit may have to wait for the disk
    grants_more = 5.0  # see cas/server_time.py; here about 0.1
    url: ClassVar[str]

    def fresh(self, folder: Path) -> StoreLocation:  # noqa: ARG002 - it needs no file
        """Return rows of its own."""
        prefix = f"{uuid4().hex}:"
        plain = PlainMariadb(self.url, prefix)
        return StoreLocation(unhurried(self.url), prefix, plain)
