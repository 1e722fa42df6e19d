"""Anonymous blocks: each becomes a function in PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tests.servers.oracle.errors import STATES, OracleError, state_of, unsupported
from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.grammar import check, check_functions
from tests.servers.oracle.locking import locks, without_wait
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import (
    OUT,
    Bind,
    Token,
    after,
    arguments,
    done,
    text_after,
    text_before,
    tokens,
    words,
)
from tests.servers.oracle.types import FOREIGN, type_at

_ENDS = frozenset({"COMMIT", "ROLLBACK"})


@dataclass(frozen=True, slots=True)
class Block:
    """A function and how it is called.

    ``ends``: COMMIT or ROLLBACK when that is its last statement, which PostgreSQL
    could not run inside of a function. ``written``: the binds that come back.
    """

    name: str
    definition: str
    needs: tuple[Need, ...]
    ends: str
    written: tuple[int, ...]


@lru_cache(512)
def translated(
    statement: str, binds: tuple[Bind, ...], types: tuple[str, ...], profile: Profile
) -> Block:
    """The block as a function whose parameters are its binds, of these types."""
    found = [
        token for token in tokens(statement) if token.kind not in {"comment", "hint"}
    ]
    found, ends = _without_end(found)
    numbers = {bind.name: number for number, bind in enumerate(binds)}
    found = [
        done(f"bind_{numbers[token.bind]}") if token.kind == "bind" else token
        for token in found
    ]
    texts = frozenset(f"bind_{n}" for n, kind in enumerate(types) if kind == "text")
    body = Body(found, profile, texts)
    parameters = ", ".join(
        f"{'INOUT' if bind.direction & OUT else 'IN'} bind_{number} {types[number]}"
        for number, bind in enumerate(binds)
    )
    written = tuple(n for n, bind in enumerate(binds) if bind.direction & OUT)
    # What is only written starts empty, whatever the client sent.
    empty = "".join(
        f"bind_{number} := NULL; "
        for number, bind in enumerate(binds)
        if bind.direction == OUT
    )
    code = (
        # A name is a column's before it is a variable's.
        "#variable_conflict use_column\n"
        f"DECLARE sql_rowcount bigint := 0; {body.declarations}\n"
        f"BEGIN {empty}{body.statements}"
    )
    digest = hashlib.sha256(f"{parameters}\n{code}".encode()).hexdigest()
    name = f"ora_blocks.block_{digest[:40]}"
    returns = "" if written else "RETURNS void "
    definition = (
        f"CREATE OR REPLACE FUNCTION {name}({parameters}) {returns}"
        f"LANGUAGE plpgsql AS $of_the_block${code}$of_the_block$"
    )
    return Block(name, definition, tuple(dict.fromkeys(body.needs)), ends, written)


def _without_end(found: list[Token]) -> tuple[list[Token], str]:
    """The block without a COMMIT or ROLLBACK that is its last statement."""
    places = [at for at, token in enumerate(found) if not token.blank]
    words = [found[at].word for at in places]
    if words[-2:] != ["END", ";"]:
        text = 'PLS-00103: Encountered the symbol "end-of-file" when expecting ;'
        raise OracleError(6550, text)
    before, end, _ = ["", "", "", *words[:-2]][-3:]
    if end in _ENDS and before in {";", "BEGIN"}:
        return found[: places[-4]] + found[places[-2] :], end
    return found, ""


# -------------------------------------------------------- What a block declares


#: Bytes of a text in PL/SQL.
LONGEST = 32767


class Declared(NamedTuple):
    """``long``: variables that may hold more than 4,000 bytes of text.

    ``exceptions``: those of its own, as PostgreSQL's handlers spell them.
    """

    text: str
    long: frozenset[str]
    exceptions: dict[str, str]


def declared(found: Sequence[Token]) -> Declared:
    """The declarations between DECLARE and BEGIN."""
    out: list[str] = []
    long: set[str] = set()
    exceptions: dict[str, str] = {}
    for part in _parts(found):
        bare = [token for token in part if not token.blank]
        words = [token.word for token in bare]
        if words[0] == "PRAGMA":
            _exception(words, exceptions)
        elif words[1:] == ["EXCEPTION"]:
            exceptions[words[0]] = ""
        elif {"CURSOR", "PROCEDURE", "FUNCTION", "TYPE", "SUBTYPE"} & set(words[:1]):
            raise unsupported(f"{words[0]} in a block")
        else:
            if FOREIGN & set(words[1:2]):
                raise OracleError(6550, f"PLS-00201: '{words[1]}' must be declared")
            check_functions(part)
            text = rewritten(_typed(part), LONGEST)
            out.append(f"{text};")
            if (
                "varchar(" in text
                and int(text.split("varchar(")[1].split(")")[0]) > 4000
            ):
                long.add(bare[0].text)
    return Declared(" ".join(out), frozenset(long), exceptions)


def _parts(found: Sequence[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    for token in found:
        if token.text == ";":
            yield part
            part = []
        else:
            part.append(token)
    if any(not token.blank for token in part):
        raise OracleError(6550, "PLS-00103: ; expected in declarations")


def _exception(words: Sequence[str], exceptions: dict[str, str]) -> None:
    """PRAGMA EXCEPTION_INIT(name, -number)."""
    if words[1] != "EXCEPTION_INIT" or words[3] not in exceptions:
        raise unsupported(f"PRAGMA {words[1]}")
    number = int("".join(words[5:-1]))
    state = STATES.get(-number) or state_of(-number)
    exceptions[words[3]] = f"SQLSTATE '{state}'"


def _typed(found: Sequence[Token]) -> list[Token]:
    """A declaration with its first type in PostgreSQL's words."""
    out: list[Token] = []
    at = 0
    while at < len(found):
        kind = type_at(found, at, LONGEST)
        if kind:
            out.append(done(kind[0]))
            return [*out, *found[kind[1] + 1 :]]
        out.append(found[at])
        at += 1
    return out


# ------------------------------------------------------------------------------
# The blocks inside a block: what PostgreSQL would undo where Oracle would not.
#
# An exception that is handled undoes the failed statement in Oracle and everything
# since BEGIN in PostgreSQL, row locks included. So in a guarded block only its last
# statement may change or lock rows; anything else is refused, lest the double tells a
# lie.


@dataclass(slots=True)
class _Frame:
    kind: str
    guarded: bool = False
    changes: list[bool] = field(default_factory=list[bool])


class Nesting:
    """Fed with the words of a block in their order, and with its statements."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._ends = False  # the word before ended something that this one names

    @property
    def depth(self) -> int:
        """How many blocks one is in; outside of the outermost 0."""
        return sum(frame.kind == "BEGIN" for frame in self._frames)

    def statement(self, *, changes: bool) -> None:
        """A statement of SQL, and whether it changes or locks rows."""
        if self._frames:
            self._frames[-1].changes.append(changes)

    def word(self, word: str, following: str) -> None:
        if self._ends:
            self._ends = False
        elif word in {"BEGIN", "IF", "LOOP", "CASE"}:
            self._frames.append(_Frame(word))
        elif word == "END":
            self._end()
            self._ends = following in {"IF", "LOOP", "CASE"}
        elif word == "EXCEPTION" and following == "WHEN":
            self._handlers()

    def _end(self) -> None:
        if not self._frames:
            raise OracleError(6550, "PLS-00103: Encountered the symbol END")
        ended = self._frames.pop()
        if self._frames:
            self._frames[-1].changes += ended.changes

    def _handlers(self) -> None:
        frame = self._frames[-1]
        if frame.kind != "BEGIN" or frame.guarded:
            raise OracleError(6550, "PLS-00103: Encountered the symbol EXCEPTION")
        if any(frame.changes[:-1]):
            raise unsupported(
                "a guarded block whose last statement is not the only one that "
                "changes or locks rows: PostgreSQL would undo the others"
            )
        frame.guarded = True


# ----------------------------------- Statements of SQL inside a block of PL/SQL


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


# ------------------------------------- What a block of PL/SQL does, in PL/pgSQL


_STARTS = words("; BEGIN THEN ELSE LOOP")
_REFUSED = words(
    "AUTHID BULK COMMIT CURSOR EXECUTE FETCH FORALL FUNCTION GOTO OPEN PIPE PRAGMA"
    " PROCEDURE ROLLBACK SAVEPOINT SQL%BULK_ROWCOUNT SUBTYPE TYPE"
)
_NAMED = {
    "DUP_VAL_ON_INDEX": "unique_violation",
    "INVALID_NUMBER": "invalid_text_representation",
    "NO_DATA_FOUND": "no_data_found",
    "SQL%FOUND": "(sql_rowcount > 0)",
    "SQL%NOTFOUND": "(sql_rowcount = 0)",
    "SQL%ROWCOUNT": "sql_rowcount",
    "SQLCODE": "ora.code(SQLSTATE)",
    "TOO_MANY_ROWS": "too_many_rows",
    "VALUE_ERROR": "string_data_right_truncation OR numeric_value_out_of_range"
    f" OR SQLSTATE '{state_of(6502)}'",
    "ZERO_DIVIDE": "division_by_zero",
}


class Body:
    """One pass over the tokens of a block, whose binds are replaced already.

    ``statements`` begin behind the outermost BEGIN. ``needs``: the tables its SQL
    takes. ``long``: variables that may hold more text than SQL takes.
    """

    def __init__(
        self, found: list[Token], profile: Profile, long: frozenset[str]
    ) -> None:
        self._found = found
        self._profile = profile
        self._nesting = Nesting()
        self._long = long
        self._named = dict(_NAMED)
        self.needs: list[Need] = []
        first = after(found, -1)
        self.declarations: str = ""
        if found[first].word == "DECLARE":
            self.declarations, first = self._declare(first)
        self._nesting.word("BEGIN", "")
        self.statements: str = self._translated(first + 1)
        if self._nesting.depth:
            raise OracleError(6550, "PLS-00103: END expected")

    def _translated(self, at: int) -> str:
        out: list[str] = []
        own: list[Token] = []  # what is PL/SQL's own
        start = True
        while at < len(self._found):
            token = self._found[at]
            if start and token.word in WORDS:
                text, at = self._sql(at)
                out += self._own(own), text
                own = []
                continue
            if start and token.word == "DECLARE":
                text, at = self._declare(at)
                own.append(done(f"DECLARE {text} "))
                continue
            if token.kind == "word":
                self._nesting.word(token.word, text_after(self._found, at))
            if not token.blank:
                start = token.word in _STARTS
            own.append(token)
            at += 1
        return "".join(out) + self._own(own)

    def _declare(self, at: int) -> tuple[str, int]:
        """The declarations behind DECLARE, and where BEGIN stands."""
        end = at
        while end < len(self._found) and self._found[end].word != "BEGIN":
            end += 1
        if end == len(self._found):
            raise OracleError(6550, "PLS-00103: BEGIN expected")
        section = declared(self._found[at + 1 : end])
        self._long |= section.long
        self._named |= section.exceptions
        return section.text, end

    def _sql(self, at: int) -> tuple[str, int]:
        end = at
        while end < len(self._found) and self._found[end].text != ";":
            end += 1
        statement = embedded(self._found[at:end], self._profile, self._long)
        self.needs += statement.needs
        self._nesting.statement(changes=statement.changes)
        return statement.text, end

    def _own(self, found: Sequence[Token]) -> str:
        check_functions(found, in_block=True)
        out: list[Token] = []
        at = 0
        while at < len(found):
            token, at = self._one(found, at)
            out.append(token)
            at += 1
        return rewritten(out, LONGEST)

    def _one(self, found: Sequence[Token], at: int) -> tuple[Token, int]:
        token = found[at]
        word = token.word
        if token.kind != "word":
            return token, at
        if word in _REFUSED:
            raise unsupported(f"{word} in a block, except COMMIT as its last statement")
        if word == "SELECT":
            if text_before(found, at, 2) == "IN":
                raise unsupported("a loop over rows")
            raise OracleError(6550, "PLS-00405: subquery not allowed in this context")
        if word == "RAISE_APPLICATION_ERROR":
            return _raised(found, at)
        if word == "DBMS_SESSION":
            return self._slept(found, at)
        if word in self._named:
            return done(self._named[word]), at
        return token, at

    def _slept(self, found: Sequence[Token], at: int) -> tuple[Token, int]:
        name = after(found, after(found, at))
        if found[name].word != "SLEEP" or self._profile.network < 318:  # of 18c
            raise OracleError(6550, "PLS-00201: identifier must be declared")
        return done("PERFORM pg_sleep"), name


def _raised(found: Sequence[Token], at: int) -> tuple[Token, int]:
    """RAISE_APPLICATION_ERROR(number, text)."""
    parts, end = arguments(found, after(found, at))
    number = -int("".join(token.text for token in parts[0] if not token.blank))
    if not 20000 <= number <= 20999:
        raise OracleError(21000, "error number argument is out of range")
    text = rewritten(parts[1], LONGEST)
    state = state_of(number)
    return done(f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = ({text})"), end
