"""What ``rwlock doctor`` tells of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiorwlock_remote.backends.postgresql.executor import PostgresqlExecutor
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.cas.tables import clock_finding
from aiorwlock_remote.ports import Clock, Finding


async def examine(
    desk: PostgresqlExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its settings; changes nothing."""
    (server,) = await desk.rows("server")
    yield Finding("server", f"PostgreSQL {server['version']}", options.where)
    if server["standby"]:
        yield Finding("role", "standby", "cannot be written: no lock can be had", "bad")
    elif server["read_only"] == "on":
        meaning = "transactions are read-only: no lock can be had"
        yield Finding("role", "read-only", meaning, "bad")
    for name in ("fsync", "synchronous_commit"):
        value = server[name]
        if value == "off":
            meaning = "after a crash of the server the last grants are forgotten"
            yield Finding(name, value, meaning, "bad" if name == "fsync" else "note")
        else:
            yield Finding(name, value, "a grant that was told survives a crash")
    if server["isolation"] != "read committed":
        meaning = "statements that meet are refused and tried again; all stays right"
        yield Finding("isolation", server["isolation"], meaning, "note")
    if not options.listen:
        yield Finding("waiting", "listen=no", "waiters poll", "note")
    yield await clock_finding(desk, clock)
