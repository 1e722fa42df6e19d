"""Whether the tables are fit for locks, and what makes them; changes nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.errors import Unsupported

_TEXT = {"character varying", "text"}
_TIME = {"timestamp with time zone"}
_TABLES: dict[str, dict[str, set[str]]] = {
    "mutex_locks": {
        "resource_type": _TEXT,
        "resource_id": {"integer"},
        "ticket": _TEXT,
        "acquired_at": _TIME,
    },
    "doormans": {
        "resource_type": _TEXT,
        "resource_id": {"integer"},
        "active_readers": _TEXT,
        "has_pending_writer": {"boolean"},
        "pending_writer": _TEXT,
        "updated_at": _TIME,
        "created_at": _TIME,
        "version": _TEXT,
        "record": _TEXT,
    },
}
_ELSEWHERE = "if they are not in the first schema of the search_path: ?schema=…"
_OURS = {"version": "varchar", "record": "text"}


def check(
    columns: Iterable[tuple[str, str, str]],
    keyless: Container[str],
    schema: str,
    where: str,
) -> None:
    """Whether these columns (table, name, type) will do. ``keyless``: tables.

    Raises:
        Unsupported: no such table, key or column, or of another type; names what to
            run.
    """
    found: dict[str, dict[str, str]] = {}
    for table, column, data_type in columns:
        found.setdefault(table, {})[column] = data_type
    for table, wanted in _TABLES.items():
        name = f"{schema}." * bool(schema) + table
        if table not in found:
            raise Unsupported(
                what=f"{where}: table {name} is not there, or not to be seen",
                hint=SCHEMA if schema else f"{SCHEMA}; {_ELSEWHERE}",
            )
        if table in keyless:
            raise Unsupported(
                what=f"{where}: {name} may have several rows for one resource",
                hint=f"ALTER TABLE {name} ADD UNIQUE (resource_type, resource_id)",
            )
        for column, kinds in wanted.items():
            kind = found[table].get(column)
            if kind is None and column in _OURS:
                add = f"ALTER TABLE {name} ADD COLUMN {column} {_OURS[column]}"
                what = f"{where}: {name} has no column {column}"
                raise Unsupported(what=what, hint=add)
            if kind not in kinds:
                said = "is not there" if kind is None else f"is {kind}"
                raise Unsupported(
                    what=f"{where}: {name}.{column} {said}, not {min(kinds)}",
                    hint=SCHEMA,
                )


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """What makes the tables, and gives ``user`` the least it needs."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user:
        owner = f'"{schema}".' if schema else ""
        if schema:
            yield f'GRANT USAGE ON SCHEMA "{schema}" TO "{user}"'
        for table in _TABLES:
            yield (
                f'GRANT SELECT, INSERT, UPDATE, DELETE ON {owner}{table} TO "{user}"'
            )
