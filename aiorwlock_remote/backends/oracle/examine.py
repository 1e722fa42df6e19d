"""What ``rwlock doctor`` tells of an Oracle database."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiorwlock_remote.backends.oracle.executor import OracleExecutor
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.cas.tables import clock_finding
from aiorwlock_remote.ports import Clock, Finding


async def examine(
    desk: OracleExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its version and clock; changes nothing."""
    yield Finding("server", f"Oracle Database {await desk.version()}", options.where)
    owner = options.schema or "the user itself"
    yield Finding("tables", f"of {owner}", "both are there, and their columns fit")
    yield await clock_finding(desk, clock)
