"""The SQL of ``statements.sql``, and how the statement of a step is composed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.cas.driver.executor import MutexChange
from aiorwlock_remote.cas.table_cas import Values

_VALUE = re.compile(r"(?<!:):([a-z_]+)")


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
    """Return the statement that reads both rows of a resource."""
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
    with_record: bool = False,
    came: bool = False,
    lazily: bool = False,
    asks: bool = True,
    waits: bool = False,
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
        with_record: Whether a notification of a free lock contains the new record.
        came: Whether the holder is notified of a new queue entry.
        lazily: Whether the commit does not wait for the disk.
        asks: Whether a refused swap returns what is stored; else it returns no row.
        waits: Whether the time that the statement waits for a locked row is limited.
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
        news = statement("all_news" if with_record and change == "leave" else "news")
        done += f" {statement('wake').replace('{news}', news)}"
    parts = [
        statement("change" if made else "make", schema)
        .replace("{and_seat}", expected)
        .replace("{and_waits}", statement("waits") if waits else "")
        .replace("{record}", statement("begins") if begins else ":n_record::text")
        .replace("{fence}", statement("begun") if begins else "NULL"),
        changed,
        statement("tell").replace("{done}", done),
    ]
    if asks:
        parts.append(statement("else").replace("{look}", statement("look", schema)))
    return _bind("\n".join(parts))


def _bind(text: str) -> BoundStatement:
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    numbered = _VALUE.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return BoundStatement(numbered, itemgetter(*names))
