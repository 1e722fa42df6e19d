"""The lock table: check of its schema, prepared statements, ``rwlock doctor``.

Nothing here changes the table.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiorwlock_remote.backends.cassandra import driver
from aiorwlock_remote.backends.cassandra.errors import SCHEMA_HINT
from aiorwlock_remote.backends.cassandra.options import Options, statement
from aiorwlock_remote.backends.cassandra.session_client import (
    LEVELS,
    PendingRows,
    Request,
    Rows,
    SessionClient,
)
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Unsupported
from aiorwlock_remote.ports import EventLoop, Finding

UNUSED_KEY = ("%", 0)  # no resource has an encoded name like that

# Linearised with the lightweight transactions; they finish what those left half done.
_SERIAL = ("load", "load_written")
_PLAIN = (
    *("insert", "replace", "update_record", "delete"),
    *("insert_placeholder", "replace_by_placeholder", "peek", "scan"),
)
# `peek` is `load` at another level: it shows what was committed, and outbids no ballot.
_SAME_TEXT = {"peek": "load"}
# One replica is enough: a cell shows its ballot, or is not there yet.
_ONE_REPLICA = ("read_ballot", "read_ballots")

PUBLISHED_COLUMNS = {
    "resource_type": "text",
    "resource_id": "int",
    "ticket": "text",
    "acquired_at": "timestamp",
}
OUR_COLUMNS = {"version": "uuid", "record": "text", "frame": "bigint"}

_SECONDS_PER_HOUR = 3600.0
_MIN_ROW_MEMORY_HOURS = 3.0  # Cassandra keeps Paxos state for at least that long
_SAFE_LOGS = ("batch", "group")


class Layout(StrEnum):
    """Primary key of the lock table, which decides which transactions take turns.

    Transactions on rows of one partition take turns. ``PAIR``: each resource has a
    partition of its own. ``TYPE``: all integer ids of one type share a partition, as in
    the published table.
    """

    PAIR = "pair"
    TYPE = "type"


@dataclass(eq=False)
class Table:
    """The open lock table, whose schema was checked, with its prepared statements.

    Attributes:
        gc_grace: Seconds for which Cassandra remembers deleted rows and Paxos
            timestamps.
        close: Closes the session if this library opened it. Blocks.
    """

    client: SessionClient
    options: Options
    layout: Layout
    gc_grace: int
    statements: dict[str, driver.Statement] = field(repr=False)
    close: Callable[[], object]

    def __post_init__(self) -> None:
        self.ask: Callable[[EventLoop, Request], PendingRows] = self.client.ask

    def request(self, name: str, *values: object) -> Request:
        return Request(self.statements[name], values)


def open_table(
    client: SessionClient, options: Options, close: Callable[[], object]
) -> Table:
    """Check the schema of the lock table, and prepare all statements. Blocks.

    ``close`` becomes ``Table.close``: called without arguments when the table is no
    longer used. Raises ``BackendError``.
    """

    def look(name: str, *values: object) -> Rows:
        prepared = client.prepare(statement(name, options), "ONE")
        return client.run(Request(prepared, values))

    columns = look("columns", options.keyspace, options.table)
    tables = look("settings", options.keyspace, options.table)
    spaces = look("keyspaces")
    layout = layout_of(
        columns,
        tables[0] if tables else None,
        [row["keyspace_name"] for row in spaces],
        options,
    )
    local = options.consistency.startswith("LOCAL_")
    levels = {
        **dict.fromkeys(_PLAIN, options.consistency),
        **dict.fromkeys(_SERIAL, options.serial_consistency),
        **dict.fromkeys(_ONE_REPLICA, "LOCAL_ONE" if local else "ONE"),
    }
    statements = {
        title: client.prepare(statement(_SAME_TEXT.get(title, title), options), level)
        for title, level in levels.items()
    }
    for title in (*_SERIAL, *_ONE_REPLICA, "peek", "scan"):
        statements[title].is_idempotent = True
    # A read of no resource shows now whether the role may read, and a quorum is there.
    client.run(Request(statements["load"], UNUSED_KEY))
    gc_grace: int = tables[0]["gc_grace_seconds"]
    return Table(client, options, layout, gc_grace, statements, close)


def layout_of(
    columns: Iterable[Mapping[str, Any]],
    table: Mapping[str, Any] | None,
    keyspaces: Iterable[str],
    options: Options,
) -> Layout:
    """Return which primary key a lock table has, or raise ``Unsupported``.

    ``columns`` and ``table`` are the table's rows in ``system_schema``, ``keyspaces``
    the names of all keyspaces. The error says that the keyspace does not exist, that
    the table does not (``table`` is None), or that it cannot hold locks, and names what
    to run.
    """
    found = {row["column_name"]: row for row in columns}
    if not found or table is None:
        if options.keyspace not in set(keyspaces):
            raise Unsupported(
                what=f"keyspace {options.keyspace!r} does not exist",
                hint="CREATE KEYSPACE … WITH replication = …",
            )
        raise Unsupported(
            what=f"table {options.quoted} does not exist", hint=SCHEMA_HINT
        )
    missing = [name for name in PUBLISHED_COLUMNS if name not in found]
    if missing:
        raise Unsupported(
            what=f"table {options.quoted} has no column {missing[0]!r}",
            hint=SCHEMA_HINT,
        )
    for name, kind in (PUBLISHED_COLUMNS | OUR_COLUMNS).items():
        row = found.get(name)
        if row is not None and row["type"] != kind:
            raise Unsupported(
                what=f"{options.quoted}: column {name!r} is {row['type']}, not {kind}",
                hint=SCHEMA_HINT,
            )
    # The published table; it can be widened while other programs use it.
    if any(name not in found for name in OUR_COLUMNS):
        raise Unsupported(
            what=f"table {options.quoted} lacks our columns",
            hint=statement("widen", options),
        )
    if table["default_time_to_live"]:
        raise Unsupported(
            what=f"{options.quoted}: default_time_to_live would end locks",
            hint=f"ALTER TABLE {options.quoted} WITH default_time_to_live = 0",
        )
    return _layout_of_keys(found, options)


def _layout_of_keys(found: Mapping[str, Mapping[str, Any]], options: Options) -> Layout:
    keys = {
        kind: tuple(
            row["column_name"]
            for row in sorted(found.values(), key=lambda row: row["position"])
            if row["kind"] == kind
        )
        for kind in ("partition_key", "clustering")
    }
    if keys == {"partition_key": ("resource_type", "resource_id"), "clustering": ()}:
        return Layout.PAIR
    if keys == {"partition_key": ("resource_type",), "clustering": ("resource_id",)}:
        return Layout.TYPE
    raise Unsupported(
        what=f"{options.quoted}: its primary key is neither ((resource_type, "
        "resource_id)) nor (resource_type, resource_id)",
        hint=SCHEMA_HINT,
    )


# ----------------------------------------------------------------- for rwlock doctor


async def examine(table: Table, loop: EventLoop) -> AsyncGenerator[Finding, None]:
    """Yield what settings of cluster and table mean for locks (``rwlock doctor``)."""
    yield await _version_finding(table, loop)
    yield await _paxos_finding(table, loop)
    yield await _replication_finding(table, loop)
    yield _layout_finding(table.layout)
    yield _gc_grace_finding(table.gc_grace)
    yield await _commit_log_finding(table, loop)


async def _ask(table: Table, loop: EventLoop, cql: str) -> list[Any]:
    # Returns no rows if the role may not ask, or the server lacks the table.
    one_node = driver.SimpleStatement(cql, consistency_level=LEVELS["ONE"])
    try:
        return list(await table.ask(loop, Request(one_node, None)))
    except BackendUnavailable:
        raise
    except BackendError:
        return []


async def _setting(table: Table, loop: EventLoop, name: str) -> str | None:
    rows = await _ask(table, loop, "SELECT name, value FROM system_views.settings")
    return next((str(row["value"]) for row in rows if row["name"] == name), None)


async def _version_finding(table: Table, loop: EventLoop) -> Finding:
    rows = await _ask(table, loop, "SELECT release_version FROM system.local")
    if not rows:
        return _unknown("version", "the role may not ask")
    version = str(rows[0]["release_version"])
    if int(version.partition(".")[0]) < 4:
        return Finding("version", version, "4.0 and later are tested", "note")
    return Finding("version", version, "fit for locks")


async def _paxos_finding(table: Table, loop: EventLoop) -> Finding:
    variant = await _setting(table, loop, "paxos_variant")
    if variant is None:
        return _unknown("paxos", "v2 needs fewer round trips")
    if variant.startswith("v2"):
        return Finding("paxos", variant, "two round trips a transaction")
    return Finding("paxos", variant, "v2 needs half the round trips", "note")


async def _replication_finding(table: Table, loop: EventLoop) -> Finding:
    rows = await _ask(table, loop, "SELECT * FROM system_schema.keyspaces")
    ours = [r for r in rows if r["keyspace_name"] == table.options.keyspace]
    if not ours:
        return _unknown("replicas", "the role may not ask")
    settings = dict(ours[0]["replication"])
    kind = settings.pop("class", "").rpartition(".")[2]
    counts = [int(value) for value in settings.values() if str(value).isdigit()]
    value = f"{kind} {', '.join(f'{k}={v}' for k, v in sorted(settings.items()))}"
    if counts and min(counts) >= 3:
        return Finding("replicas", value, "locks survive the loss of a node")
    return Finding("replicas", value, "below 3 one node down means down", "note")


def _layout_finding(layout: Layout) -> Finding:
    if layout is Layout.PAIR:
        return Finding("layout", "pair", "no resource waits for another")
    meaning = "all integer ids of one type take turns: many ids want the pair as key"
    return Finding("layout", "type", meaning, "note")


def _gc_grace_finding(gc_grace: int) -> Finding:
    hours = max(_MIN_ROW_MEMORY_HOURS, gc_grace / _SECONDS_PER_HOUR)
    value = f"gc_grace_seconds {gc_grace}"
    meaning = f"fences rise over {hours:g} h without use; repair more often than that"
    enough = gc_grace >= _SECONDS_PER_HOUR
    return Finding("memory", value, meaning, "good" if enough else "bad")


async def _commit_log_finding(table: Table, loop: EventLoop) -> Finding:
    sync = await _setting(table, loop, "commitlog_sync")
    if sync is None:
        return _unknown("commit log", "batch or group forget nothing")
    if sync in _SAFE_LOGS:
        return Finding("commit log", sync, "a node that dies has forgotten nothing")
    meaning = "a node that dies forgets what it promised last; batch or group do not"
    return Finding("commit log", sync, meaning, "note")


def _unknown(name: str, meaning: str) -> Finding:
    return Finding(name, "not told", meaning, "note")
