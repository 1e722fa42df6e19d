"""Statements of SQL inside a block of PL/SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.grammar import check, check_functions
from tests.servers.oracle.locking import locks, without_wait
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import Token, after, done, text_after, text_before

WORDS = frozenset({"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"})


class Need(NamedTuple):
    """A table a statement reads or changes, and the right it takes."""

    table: str
    right: str


class Embedded(NamedTuple):
    text: str
    needs: tuple[Need, ...]
    changes: bool


def embedded(
    found: Sequence[Token], profile: Profile, long: frozenset[str]
) -> Embedded:
    """One statement, its binds replaced, without the semicolon.

    ``long``: variables that may hold more than a text in SQL may have.
    """
    bare = [token for token in found if not token.blank]
    check(bare, profile)
    check_functions(found)
    first = bare[0].word
    changes = first not in {"SELECT", "WITH"} or locks(found)
    found, wait = without_wait(found)
    out: list[Token] = []
    into = False
    for at, token in enumerate(found):
        if token.word == "INTO" and _takes_rows(found, at, first):
            into = True
            out += [token, done(" STRICT")] if first == "SELECT" else [token]
            continue
        into = into and token.word not in {"FROM", "WHERE"}
        if token.text in long and not into and not is_direct(found, at, first):
            out.append(done(f"ora.expressible({token.text})"))
        else:
            out.append(token)
    text = (
        f"sql_rowcount := 0; {rewritten(out)}; GET DIAGNOSTICS sql_rowcount = ROW_COUNT"
    )
    if wait is not None:
        before = f"PERFORM set_config('lock_timeout', '{wait}s', true)"
        text = f"{before}; {text}; PERFORM set_config('lock_timeout', '0', true)"
    return Embedded(text, tuple(_needs(bare)), changes)


def _takes_rows(found: Sequence[Token], at: int, first: str) -> bool:
    """Whether this INTO names variables; not the table of an INSERT."""
    if first in {"SELECT", "WITH"}:
        return True
    return any(token.word == "RETURNING" for token in found[:at])


def is_direct(found: Sequence[Token], at: int, first: str) -> bool:
    """Whether a variable is a column's new value as it is."""
    if first not in {"INSERT", "UPDATE", "MERGE"}:
        return False
    before = text_before(found, at)
    behind = text_after(found, at)
    if first == "UPDATE":
        where = any(token.word == "WHERE" for token in found[:at])
        return not where and before == "=" and behind in {",", "WHERE", "RETURNING", ""}
    return before in {"(", ","} and behind in {",", ")"}


def _needs(found: Sequence[Token]) -> Iterator[Need]:
    """The tables, by where their names stand."""
    clauses = [""]
    for at, token in enumerate(found):
        word = token.word
        if token.text == "(":
            clauses.append("")
        elif token.text == ")":
            clauses.pop()
        elif word in {"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WHERE", "SET"}:
            follows_for = at and found[at - 1].word == "FOR"
            clauses[-1] = clauses[-1] if follows_for else word
        if word == "FROM" and clauses[-1] in {"SELECT", "DELETE"}:
            yield from _table(found, at, clauses[-1])
            clauses[-1] = "FROM"
        elif word == "JOIN" or (token.text == "," and clauses[-1] == "FROM"):
            yield from _table(found, at, "SELECT")
        elif word == "INTO" and clauses[-1] in {"INSERT", "MERGE"}:
            yield from _table(found, at, "INSERT")
        elif (
            word == "UPDATE"
            and clauses[-1] == "UPDATE"
            and text_after(found, at) != "SET"
        ):
            yield from _table(found, at, "UPDATE")


def _table(found: Sequence[Token], at: int, right: str) -> Iterator[Need]:
    here = after(found, at)
    if here >= len(found) or found[here].kind not in {"word", "quoted"}:
        return
    name = [found[here]]
    if text_after(found, here) == ".":
        name += [found[here + 1], found[here + 2]]
    text = rewritten(name).lower()
    if text not in {"ora.dual", "dual"}:
        yield Need(text, right)
