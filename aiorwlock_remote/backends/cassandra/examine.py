"""What the cluster's and the table's settings mean for locks: for ``rwlock doctor``.

Every question may be refused to the role of the URL; a refusal is a finding, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aiorwlock_remote.backends.cassandra.schema import Layout
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.errors import BackendError, BackendUnavailable
from aiorwlock_remote.ports import EventLoop, Finding

_HOURS = 3600.0
_SAFE_LOGS = ("batch", "group")


async def examine(table: Table, host: EventLoop) -> AsyncIterator[Finding]:
    """One finding after another."""
    yield await _version(table, host)
    yield await _paxos(table, host)
    yield await _replication(table, host)
    yield _layout(table.layout)
    yield _memory(table.gc_grace)
    yield await _commit_log(table, host)


async def _ask(table: Table, host: EventLoop, cql: str) -> list[Any]:
    """The rows; none if the role may not ask, or the server does not know that."""
    try:
        return list(await table.query(host, cql))
    except BackendUnavailable:
        raise
    except BackendError:
        return []


async def _setting(table: Table, host: EventLoop, name: str) -> str | None:
    rows = await _ask(table, host, "SELECT name, value FROM system_views.settings")
    return next((str(row["value"]) for row in rows if row["name"] == name), None)


async def _version(table: Table, host: EventLoop) -> Finding:
    rows = await _ask(table, host, "SELECT release_version FROM system.local")
    if not rows:
        return Finding("version", "not told", "the role may not ask", "note")
    version = str(rows[0]["release_version"])
    if int(version.partition(".")[0]) < 4:
        return Finding("version", version, "4.0 and later are tested", "note")
    return Finding("version", version, "fit for locks")


async def _paxos(table: Table, host: EventLoop) -> Finding:
    variant = await _setting(table, host, "paxos_variant")
    if variant is None:
        return Finding("paxos", "not told", "v2 needs fewer round trips", "note")
    if variant.startswith("v2"):
        return Finding("paxos", variant, "two round trips a transaction")
    return Finding("paxos", variant, "v2 needs half the round trips", "note")


async def _replication(table: Table, host: EventLoop) -> Finding:
    rows = await _ask(table, host, "SELECT * FROM system_schema.keyspaces")
    ours = [r for r in rows if r["keyspace_name"] == table.options.keyspace]
    if not ours:
        return Finding("replicas", "not told", "the role may not ask", "note")
    settings = dict(ours[0]["replication"])
    kind = settings.pop("class", "").rpartition(".")[2]
    counts = [int(value) for value in settings.values() if str(value).isdigit()]
    value = f"{kind} {', '.join(f'{k}={v}' for k, v in sorted(settings.items()))}"
    if counts and min(counts) >= 3:
        return Finding("replicas", value, "locks survive the loss of a node")
    return Finding("replicas", value, "below 3 one node down means down", "note")


def _layout(layout: Layout) -> Finding:
    if layout is Layout.PAIR:
        return Finding("layout", "pair", "no resource waits for another")
    meaning = "all integer ids of one type take turns: many ids want the pair as key"
    return Finding("layout", "type", meaning, "note")


def _memory(gc_grace: int) -> Finding:
    hours = max(3.0, gc_grace / _HOURS)
    value = f"gc_grace_seconds {gc_grace}"
    meaning = f"fences rise over {hours:g} h without use; repair more often than that"
    return Finding("memory", value, meaning, "good" if gc_grace >= _HOURS else "bad")


async def _commit_log(table: Table, host: EventLoop) -> Finding:
    sync = await _setting(table, host, "commitlog_sync")
    if sync is None:
        return Finding(
            "commit log", "not told", "batch or group forget nothing", "note"
        )
    if sync in _SAFE_LOGS:
        return Finding("commit log", sync, "a node that dies has forgotten nothing")
    meaning = "a node that dies forgets what it promised last; batch or group do not"
    return Finding("commit log", sync, meaning, "note")
