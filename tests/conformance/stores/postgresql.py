"""The harnesses of PostgreSQL, with and without PgBouncer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import Harness, StoreLocation
from tests.servers.plain import PlainPostgresql


def unhurried(url: str) -> str:
    """The URL of a database with time for a machine that stands still."""
    sign = "&" if "?" in url else "?"
    return f"{url}{sign}call_timeout=30"


class PostgresqlHarness(Harness):
    """``postgresql://``: one database and its two tables, a prefix for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.PUSHES
        | Capability.HINTS
        | Capability.ROW_LOCKS
        | Capability.ROW_RELEASES
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
        plain = PlainPostgresql(self.url, prefix)
        return StoreLocation(unhurried(self.url), prefix, plain)


class PooledPostgresqlHarness(PostgresqlHarness):
    """The harness of PostgreSQL behind PgBouncer."""

    through: ClassVar[str]

    def fresh(self, folder: Path) -> StoreLocation:
        """Return rows of its own."""
        return replace(super().fresh(folder), url=unhurried(self.through))
