"""What ``rwlock doctor`` tells of a MariaDB server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.cas.tables import clock_finding
from aiorwlock_remote.ports import Clock, Finding

FLUSH = "innodb_flush_log_at_trx_commit"


async def examine(
    desk: MariadbExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its settings; changes nothing."""
    server = await desk.server()
    yield Finding("server", server["version"], options.where)
    if server["read_only"] != "OFF":
        meaning = "a replica, or set so: no lock can be had"
        yield Finding("role", "read-only", meaning, "bad")
    flush = server[FLUSH]
    if flush in {"1", "3"}:
        yield Finding(FLUSH, flush, "a grant that was told survives a crash")
    else:
        meaning = "after a crash the grants of the last second are forgotten"
        yield Finding(FLUSH, flush, meaning, "note")
    if server.get("wsrep_on") == "ON":
        meaning = "let all programs lock at one node: nodes lag behind each other"
        yield Finding("cluster", "Galera", meaning, "note")
    yield await clock_finding(desk, clock)
