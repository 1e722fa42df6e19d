"""Queries and changes of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.grammar import check, check_functions
from tests.servers.oracle.locking import locks, without_wait
from tests.servers.oracle.plsql import is_direct
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import Token, after, closing, done, text_after, tokens


@dataclass(frozen=True, slots=True)
class Sql:
    """``used``: which binds are its parameters, by their place in the statement.

    ``direct``: binds that become a column's value as they are.
    """

    text: str
    used: tuple[int, ...]
    direct: frozenset[int]
    locks: bool
    wait: int | None


@lru_cache(1024)
def translated(statement: str, types: tuple[str, ...], profile: Profile) -> Sql:
    """The statement for PostgreSQL, its binds cast to the types they come with."""
    found = tokens(statement)
    check([token for token in found if not token.blank], profile)
    check_functions(found)
    ignores = _ignores_duplicates(found)
    found, wait = without_wait(found)
    if next(token.word for token in found if token.kind == "word") == "MERGE":
        found = _unqualified_targets(found)
    end = _end_of_returning(found)
    out: list[Token] = []
    used: list[int] = []
    direct: set[int] = set()
    first = next(token.word for token in found if token.kind == "word")
    bind = 0
    for at, token in enumerate(found):
        if token.kind != "bind":
            if at < end:
                out.append(token)
            continue
        if at < end:
            if is_direct(found, at, first):
                direct.add(bind)
            used.append(bind)
            out.append(done(f"(${len(used)}{_cast(types, bind)})"))
        bind += 1
    text = rewritten(out) + (" ON CONFLICT DO NOTHING" if ignores else "")
    return Sql(text, tuple(used), frozenset(direct), locks(found), wait)


def _cast(types: tuple[str, ...], bind: int) -> str:
    """To the type it comes with; unknown when a statement is only parsed."""
    return f"::{types[bind]}" if bind < len(types) else ""


def _ignores_duplicates(found: Sequence[Token]) -> bool:
    return any(
        token.kind == "hint" and "IGNORE_ROW_ON_DUPKEY_INDEX" in token.text.upper()
        for token in found
    )


def _end_of_returning(found: Sequence[Token]) -> int:
    """Where INTO stands behind RETURNING: the client's names, not PostgreSQL's."""
    returning = False
    for at, token in enumerate(found):
        returning = returning or token.word == "RETURNING"
        if returning and token.word == "INTO":
            return at
    return len(found)


def _unqualified_targets(found: Sequence[Token]) -> list[Token]:
    """SET d.a = … of a MERGE: Oracle allows the table, PostgreSQL does not."""
    out: list[Token] = []
    at = 0
    setting = target = False
    while at < len(found):
        token = found[at]
        if token.word == "SET":
            setting = target = True
        elif token.word in {"WHEN", "WHERE", "DELETE"}:
            setting = False
        elif token.text == "(" and setting:
            end = closing(found, at)
            out += found[at : end + 1]
            at = end + 1
            continue
        elif token.text == "," and setting:
            target = True
        elif token.kind == "word" and setting and target:
            target = False
            if text_after(found, at) == ".":
                at = after(found, after(found, at))
        out.append(found[at])
        at += 1
    return out
