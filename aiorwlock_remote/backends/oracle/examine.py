"""What ``rwlock doctor`` tells of an Oracle database."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiorwlock_remote.backends.oracle.executor import OracleDesk
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.ports import Clock, Finding
from aiorwlock_remote.swapping.telling_time import clock_found


async def examine(
    desk: OracleDesk, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its version and clock; changes nothing."""
    yield Finding("server", f"Oracle Database {await desk.version()}", options.where)
    owner = options.schema or "the user itself"
    yield Finding("tables", f"of {owner}", "both are there, and their columns fit")
    yield await clock_found(desk, clock)
