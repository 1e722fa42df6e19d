"""Whether the table is one that locks can live in; nothing here changes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from aiorwlock_remote.backends.cassandra.errors import SCHEMA
from aiorwlock_remote.backends.cassandra.options import Options
from aiorwlock_remote.backends.cassandra.statements import statement
from aiorwlock_remote.errors import Unsupported

PUBLISHED = {
    "resource_type": "text",
    "resource_id": "int",
    "ticket": "text",
    "acquired_at": "timestamp",
}
OURS = {"version": "uuid", "record": "text", "frame": "bigint"}


class Layout(StrEnum):
    """What a Paxos partition of the table is.

    ``PAIR``: one resource, so that different resources never wait for each other.
    ``TYPE``: all integer ids of one type, as the published table has it.
    """

    PAIR = "pair"
    TYPE = "type"


def layout_of(
    columns: Iterable[Mapping[str, Any]],
    table: Mapping[str, Any] | None,
    keyspaces: Iterable[str],
    options: Options,
) -> Layout:
    """The layout of the table whose description these rows are.

    ``columns`` and ``table``: what ``system_schema`` has of it.

    Raises:
        Unsupported: no such keyspace or table, or not fit; names what to run.
    """
    found = {row["column_name"]: row for row in columns}
    if not found or table is None:
        if options.keyspace not in set(keyspaces):
            raise Unsupported(
                what=f"keyspace {options.keyspace!r} does not exist",
                hint="CREATE KEYSPACE … WITH replication = …",
            )
        raise Unsupported(what=f"table {options.quoted} does not exist", hint=SCHEMA)
    missing = [name for name in PUBLISHED if name not in found]
    if missing:
        raise Unsupported(
            what=f"table {options.quoted} has no column {missing[0]!r}", hint=SCHEMA
        )
    for name, kind in (PUBLISHED | OURS).items():
        row = found.get(name)
        if row is not None and row["type"] != kind:
            raise Unsupported(
                what=f"{options.quoted}: column {name!r} is {row['type']}, not {kind}",
                hint=SCHEMA,
            )
    if any(name not in found for name in OURS):
        raise Unsupported(
            what=f"table {options.quoted} lacks our columns",
            hint=statement("widen", options),
        )
    if table["default_time_to_live"]:
        raise Unsupported(
            what=f"{options.quoted}: default_time_to_live would end locks",
            hint=f"ALTER TABLE {options.quoted} WITH default_time_to_live = 0",
        )
    return _keyed(found, options)


def _keyed(found: Mapping[str, Mapping[str, Any]], options: Options) -> Layout:
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
        hint=SCHEMA,
    )
