"""The SQL of ``statements.sql``, composed for a step; checks of the two tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.postgresql.options import SCHEMA
from aiorwlock_remote.cas.driver.executor import MutexChange
from aiorwlock_remote.cas.driver.schema import TABLES, ExpectedTables, grants
from aiorwlock_remote.cas.table_cas import Values
from aiorwlock_remote.errors import Unsupported

_VALUE = re.compile(r"(?<!:):([a-z_]+)")
_TEXT = "character varying", "text"
_SCHEMA_HINT = "if they are not in the first schema of the search_path: ?schema=…"
_EXPECTED = ExpectedTables(
    types={
        "name": _TEXT,
        "number": ("integer",),
        "text": _TEXT,
        "time": ("timestamp with time zone",),
        "flag": ("boolean",),
        "record": _TEXT,
    },
    added_columns={"version": "varchar", "record": "text"},
    add_column="ADD COLUMN {} {}",
    hint=SCHEMA,
)


class BoundStatement(NamedTuple):
    """SQL with ``$1``, ``$2``, …; ``pick(values)`` returns their values in order."""

    text: str
    pick: Callable[[Values], tuple[object, ...]]


@cache
def statement(name: str, schema: str = "") -> str:
    """Return the statement ``name`` of ``statements.sql``, for tables of ``schema``."""
    texts = load_statements("aiorwlock_remote.backends.postgresql", "statements.sql")
    return texts[name].replace("{schema}", f'"{schema}".' if schema else "")


@cache
def look_statement(schema: str = "") -> BoundStatement:
    """Return the statement that reads a resource's rows in both tables."""
    return _bind(statement("look", schema))


@cache
def swap_statement(
    change: MutexChange,
    schema: str = "",
    *,
    taken: bool,
    made: bool,
    wakes: bool,
    begins: bool = False,
    pushes: bool = False,
    with_record: bool = False,
    came: bool = False,
    lazily: bool = False,
    asks: bool = True,
    waits: bool = False,
    skips: bool = False,
) -> BoundStatement:
    """Compose the SQL statement that carries out a swap.

    Args:
        change: What happens to the mutex row: "stay" (nothing), "sit" (insert), "move"
            (replace) or "leave" (delete).
        schema: Schema of the tables; empty for the first of the search path.
        taken: Whether the swap expects that a mutex row is stored.
        made: Whether the swap expects that a doormans row is stored.
        wakes: Whether clients are notified that they may claim.
        begins: Whether a phase begins, so that the server chooses its fence.
        pushes: Whether the client that is notified was pushed the grant of that phase.
        with_record: Whether a notification of a free lock contains the new record.
        came: Whether the holder is notified of a new queue entry.
        lazily: Whether the commit does not wait for the disk.
        asks: Whether a refused swap returns what is stored; else it returns no row.
        waits: Whether the time that the statement waits for a locked row is limited.
        skips: Whether the swap is refused at once if another transaction has the
            doormans row; then the answer's ``done`` is NULL.
    """
    expected, changed, done = "", "", "true"
    if change == "stay" or not made:
        expected = statement("taken" if taken else "free", schema)
    if change != "stay":
        changed, done = statement(change, schema), statement("both")
    if lazily:
        done += f" {statement('lazily')}"
    if came:
        done += f" {statement('came')}"
    if wakes:
        name = "all_news" if with_record and change == "leave" else "news"
        news = statement("pushed_news" if pushes else name)
        done += f" {statement('wake').replace('{news}', news)}"
    unlocked, if_unlocked, refused = "", "", "false"
    if skips and made:
        unlocked = f"{statement('unlocked', schema)}\n"
        if_unlocked = statement("if_unlocked")
        refused = statement("refused_or_locked")
    parts = [
        statement("change" if made else "make", schema)
        .replace("{unlocked}", unlocked)
        .replace("{and_unlocked}", if_unlocked)
        .replace("{and_seat}", expected)
        .replace("{and_waits}", statement("waits") if waits else "")
        .replace("{record}", statement("begins") if begins else ":n_record::text")
        .replace("{fence}", statement("begun") if begins else "NULL"),
        changed,
        statement("tell").replace("{done}", done),
    ]
    if asks:
        parts.append(
            statement("else")
            .replace("{refused}", refused)
            .replace("{look}", statement("look", schema))
        )
    return _bind("\n".join(parts))


def _bind(text: str) -> BoundStatement:
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    numbered = _VALUE.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return BoundStatement(numbered, itemgetter(*names))


def check_tables(
    columns: Iterable[tuple[str, str, str]],
    keyless: Container[str],
    schema: str,
    where: str,
) -> None:
    """Check the columns and keys of the two lock tables.

    Args:
        columns: Table, name and type of each column.
        keyless: Tables that lack a unique key over a resource's two columns.
        schema: Schema of the tables; empty for the first of the search path.
        where: The server, for error messages.

    Raises:
        Unsupported: A table, key or column is missing or unfit; see the hint.
    """
    types: dict[str, dict[str, str]] = {}
    for table, column, data_type in columns:
        types.setdefault(table, {})[column] = data_type
    for table, names in TABLES.items():
        name = f"{schema}." * bool(schema) + table
        hint = SCHEMA if schema else f"{SCHEMA}; {_SCHEMA_HINT}"
        _EXPECTED.check_table(types.get(table), name, where, hint)
        if table in keyless:
            raise Unsupported(
                what=f"{where}: {name} may have several rows for one resource",
                hint=f"ALTER TABLE {name} ADD UNIQUE (resource_type, resource_id)",
            )
        for column in names:
            _EXPECTED.check_column(name, column, types[table].get(column), where)


def statements_of(schema: str = "", user: str = "") -> Iterator[str]:
    """Yield CREATE TABLE for tables in ``schema``, and GRANTs to ``user`` if any."""
    yield statement("schema_locks", schema)
    yield statement("schema_doormans", schema)
    if user and schema:
        yield f'GRANT USAGE ON SCHEMA "{schema}" TO "{user}"'
    if user:
        yield from grants(f'"{schema}".' if schema else "", f'"{user}"')
