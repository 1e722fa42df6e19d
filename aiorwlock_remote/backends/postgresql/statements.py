"""The statements of ``load_statements.sql``, and how a step is put together from
them.
"""

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
    """A statement, and what picks its $1, $2, and so on, out of the values."""

    text: str
    picked: Callable[[Values], tuple[object, ...]]


def _all() -> dict[str, str]:
    return load_statements("aiorwlock_remote.backends.postgresql", "statements.sql")


@cache
def statement(name: str, schema: str = "") -> str:
    """The statement of that name, for the tables of a schema."""
    return _all()[name].replace("{schema}", f'"{schema}".' if schema else "")


@cache
def look(schema: str = "") -> BoundStatement:
    """What stands there."""
    return _asking(statement("look", schema))


@cache
def swap(
    seat: MutexChange,
    schema: str = "",
    *,
    taken: bool,
    made: bool,
    wakes: bool,
    begins: bool = False,
    tells: bool = False,
    came: bool = False,
    lazily: bool = False,
    asks: bool = True,
    waits: bool = False,
) -> BoundStatement:
    """A step: what is believed and what becomes of the seat.

    ``begins``: whether a phase does, so that the server chooses its fence.
    ``made``: whether the doorman's row is there; ``wakes``: whether somebody is told,
    and ``tells``: what stands there then, if the seat is free; ``came``: whether the
    holder is told that somebody queued up; ``lazily``: whether a crash of the server
    may undo it; ``asks``: whether a refusal tells what stands there, or nothing;
    ``waits``: whether it is told for how long to wait for a locked row.
    """
    believed, changed, done = "", "", "true"
    if seat == "stay" or not made:
        believed = statement("taken" if taken else "free", schema)
    if seat != "stay":
        changed, done = statement(seat, schema), statement("both")
    if lazily:
        done += f" {statement('lazily')}"
    if came:
        done += f" {statement('came')}"
    if wakes:
        news = statement("all_news" if tells and seat == "leave" else "news")
        done += f" {statement('wake').replace('{news}', news)}"
    limited = statement("waits") if waits else ""
    first = statement("change" if made else "make", schema)
    parts = [
        first.replace("{and_seat}", believed)
        .replace("{and_waits}", limited)
        .replace("{record}", statement("begins") if begins else ":n_record::text")
        .replace("{fence}", statement("begun") if begins else "NULL"),
        changed,
        statement("tell").replace("{done}", done),
    ]
    if asks:
        parts.append(statement("else").replace("{look}", statement("look", schema)))
    return _asking("\n".join(parts))


def _asking(text: str) -> BoundStatement:
    names = tuple(dict.fromkeys(_VALUE.findall(text)))
    numbered = _VALUE.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return BoundStatement(numbered, itemgetter(*names))
