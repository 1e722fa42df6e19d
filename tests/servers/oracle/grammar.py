"""What PostgreSQL takes and Oracle does not: refused, with Oracle's error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import Token, after, text_after, words

_ENDED = OracleError(933, "SQL command not properly ended")

# Oracle's functions that the double has, by what they are called in PostgreSQL.
FUNCTIONS: dict[str, str] = {
    name: name.lower()
    for name in words(
        "ABS AVG CAST CEIL COALESCE COUNT DENSE_RANK EXTRACT FLOOR HEXTORAW INSTR"
        " LENGTH LENGTHB LOWER LPAD LTRIM MAX MIN MOD NULLIF NUMTODSINTERVAL POWER RANK"
        " RAWTOHEX REPLACE ROUND ROW_NUMBER RPAD RTRIM SIGN SUBSTR SUM SYS_CONTEXT"
        " SYS_EXTRACT_UTC SYS_GUID TO_CHAR TO_CLOB TO_DATE TO_NUMBER TO_TIMESTAMP TRIM"
        " TRUNC UPPER"
    )
} | {"NVL": "coalesce", "GREATEST": "ora.the_greatest", "LEAST": "ora.the_least"}

PACKAGED: dict[tuple[str, str], str] = {
    ("DBMS_LOB", "SUBSTR"): "ora.dbms_lob_substr",
    ("DBMS_LOB", "GETLENGTH"): "ora.dbms_lob_getlength",
}

# Words that a bracket may follow without being functions.
_BRACKETED = words(
    "ALL AND ANY AS BETWEEN BY CASE CHAR CHECK DAY DISTINCT ELSE ELSIF END EXISTS FROM"
    " IF IN INSERT INTO IS JOIN KEY LIKE LOOP MINUS NOT NUMBER ON OR OVER PARTITION RAW"
    " RETURN SECOND SELECT SET SOME THEN TIMESTAMP UNION UNIQUE UPDATE USING VALUES"
    " VARCHAR VARCHAR2 WHEN WHERE WHILE"
)
# Words that a table follows, and then maybe its columns in brackets.
_TABLES = words("INTO WITH")
_UNITS = words("YEAR MONTH DAY HOUR MINUTE SECOND")

# Words that Oracle has no place for; a name spelled so would have to be quoted.
_FOREIGN = words(
    "BIGINT BIGSERIAL BYTEA CONFLICT ILIKE LATERAL LIMIT OVERLAPS REGCLASS SERIAL"
    " SIMILAR TEXT TIMESTAMPTZ TSQUERY UNLOGGED VARYING"
)


# What a block may call beside functions.
_PROCEDURES = words("RAISE_APPLICATION_ERROR DBMS_SESSION.SLEEP")


def check_functions(found: Sequence[Token], *, in_block: bool = False) -> None:
    """Only functions the double has, which are all Oracle's."""
    found = [token for token in found if not token.blank]
    for at, token in enumerate(found[:-1]):
        if token.kind != "word" or found[at + 1].text != "(":
            continue
        name = token.word
        first = at
        while first > 1 and found[first - 1].text == ".":
            first -= 2
        if first and found[first - 1].word in _TABLES:
            continue
        if first < at and (found[first].word, name) not in PACKAGED:
            name = f"{found[first].word}.{name}"
        elif first < at or name in FUNCTIONS or name in _BRACKETED:
            continue
        if in_block and name in _PROCEDURES:
            continue
        raise OracleError(904, f'"{name}": invalid identifier')


_CLAUSES = words("CONNECT DELETE GROUP HAVING ON ORDER SET UPDATE USING WHERE")
_ENDING = words("FETCH FOR INTO VALUES")


@dataclass(slots=True)
class _Level:
    """Between two brackets: the clause one is in."""

    clause: str = ""
    source: bool = True


def check(found: Sequence[Token], profile: Profile) -> None:
    """One statement, without what surrounds it in PL/SQL."""
    levels = [_Level()]
    for at, token in enumerate(found):
        if token.text == "(":
            levels.append(_Level())
        elif token.text == ")":
            _closed(levels.pop(), profile)
            if not levels:
                raise _ENDED
        elif token.text == ";":
            raise OracleError(911, "invalid character ;")
        elif token.kind == "word":
            _check_word(found, at, levels[-1], profile)
            _enter(levels[-1], token.word, profile)
    if len(levels) != 1:
        raise OracleError(907, "missing right parenthesis")
    _closed(levels[0], profile)
    said = [token.word for token in found if token.kind == "word"]
    if "RETURNING" in said and "INTO" not in said[said.index("RETURNING") :]:
        raise OracleError(925, "missing INTO keyword")


def _check_word(
    found: Sequence[Token], at: int, level: _Level, profile: Profile
) -> None:
    word = found[at].word
    if word in _FOREIGN:
        raise _ENDED
    if word in {"TRUE", "FALSE"} and not profile.ends_responses:  # of 23ai
        raise OracleError(904, f'"{word}": invalid identifier')
    if word == "INTERVAL" and found[after(found, at)].kind == "text":
        _check_interval(found, at)
    if word == "AS" and level.clause in {"FROM", "JOIN", "UPDATE", "DELETE"}:
        raise _ENDED


def _enter(level: _Level, word: str, profile: Profile) -> None:
    if word == "SELECT":
        level.clause, level.source = word, False
    elif word in {"FROM", "JOIN"}:
        level.clause, level.source = word, True
    elif word in {"UNION", "MINUS", "INTERSECT"}:
        _closed(level, profile)
        level.clause, level.source = "", True
    elif word in _CLAUSES or (word in _ENDING and level.clause != "SELECT"):
        level.clause = word


def _closed(level: _Level, profile: Profile) -> None:
    if not level.source and not profile.ends_responses:  # 23ai needs no DUAL
        raise OracleError(923, "FROM keyword not found where expected")


def _check_interval(found: Sequence[Token], at: int) -> None:
    """INTERVAL '1' SECOND; the unit never stands in the text."""
    if text_after(found, after(found, at)) not in _UNITS:
        raise OracleError(30089, "missing or invalid <datetime field>")
