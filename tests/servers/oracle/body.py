"""What a block of PL/SQL does, in PL/pgSQL."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.oracle.declared import LONGEST, declared
from tests.servers.oracle.embedded import WORDS, Need, embedded
from tests.servers.oracle.errors import OracleError, state_of, unsupported
from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.grammar import check_functions
from tests.servers.oracle.nesting import Nesting
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import (
    Token,
    after,
    arguments,
    done,
    text_after,
    text_before,
    words,
)

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
