"""Tables, rights and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.servers.oracle.errors import OracleError, unsupported
from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.tokens import Token, arguments, done, text_after, tokens
from tests.servers.oracle.types import FOREIGN, type_at

_NOTHING = frozenset({"ANALYZE", "AUDIT", "COMMENT"})
_KINDS = frozenset({"ALTER", "CREATE", "DROP", "GRANT", "REVOKE", "TRUNCATE"})
_MADE = frozenset({"INDEX", "TABLE", "UNIQUE"})
_STORAGE = re.compile(
    r"(?i)\s+(CASCADE\s+CONSTRAINTS|PURGE|ORGANIZATION\s+INDEX|NOLOGGING|PCTFREE\s+\d+"
    r"|INITRANS\s+\d+|TABLESPACE\s+\w+|ENABLE|NOCOMPRESS|USING\s+INDEX)\b"
)
_IS_JSON = re.compile(r"(?is)\b(\w+)\s+IS\s+JSON(\s+\(?STRICT\)?)?")


def translated(statement: str) -> str | None:
    """For PostgreSQL; nothing where there is nothing to do."""
    found = tokens(_IS_JSON.sub(r"ora.is_json(\1)", statement.strip()))
    if found and found[-1].text == ";":
        raise OracleError(911, "invalid character ;")
    words = [token.word for token in found if token.kind == "word"]
    if words[0] in _NOTHING:
        return None
    if words[0] not in _KINDS:
        raise OracleError(900, "invalid SQL statement")
    if words[0] in {"GRANT", "REVOKE"}:
        return rewritten(found) if "ON" in words else None
    if words[:2] == ["ALTER", "SESSION"]:
        return _session(statement)
    if set(words[1:4]) & {"PROCEDURE", "FUNCTION", "PACKAGE", "TRIGGER", "TYPE"}:
        raise unsupported("stored programs")
    if words[0] == "CREATE" and words[1] not in _MADE:
        raise unsupported(f"CREATE {words[1]}")
    if "IDENTITY" in words:
        raise unsupported("IDENTITY columns")
    if FOREIGN & set(words):
        raise OracleError(902, "invalid datatype")
    if words[:2] == ["ALTER", "TABLE"]:
        found = _altered(found)
    return _STORAGE.sub("", rewritten(_typed(found)))


def _typed(found: Sequence[Token]) -> list[Token]:
    out: list[Token] = []
    at = 0
    while at < len(found):
        kind = type_at(found, at)
        if kind:
            out.append(done(kind[0]))
            at = kind[1] + 1
        else:
            out.append(found[at])
            at += 1
    return out


def _session(statement: str) -> str | None:
    compares = re.search(r"(?i)\bNLS_COMP\s*=\s*(\w+)", statement)
    if compares is not None:  # it is given; nothing is compared otherwise
        return f"SET ora.nls_comp = '{compares.group(1).upper()}'"
    schema = re.search(r"(?i)\bCURRENT_SCHEMA\s*=\s*(\w+)", statement)
    if schema is None:
        return None
    return f"SET search_path = {schema.group(1).lower()}, ora, pg_catalog"


def _altered(found: list[Token]) -> list[Token]:
    """ADD and MODIFY, of one column or of several in brackets."""
    for at, token in enumerate(found):
        if token.word not in {"ADD", "MODIFY"}:
            continue
        if text_after(found, at) in {"CONSTRAINT", "PRIMARY", "UNIQUE"}:
            return found
        rest = found[at + 1 :]
        start = next(n for n, here in enumerate(rest) if not here.blank)
        parts = arguments(rest, start)[0] if rest[start].text == "(" else [rest]
        out = found[:at]
        for number, part in enumerate(parts):
            out += [done("," if number else "")]
            out += _added(part) if token.word == "ADD" else _modified(part)
        return out
    return found


def _added(column: list[Token]) -> list[Token]:
    return [done(" ADD COLUMN "), *column]


def _modified(column: list[Token]) -> list[Token]:
    name = next(token for token in column if not token.blank)
    rest = column[column.index(name) + 1 :]
    start = next(n for n, token in enumerate(rest) if not token.blank)
    kind = type_at(rest, start)
    if kind is None:
        raise unsupported("MODIFY of anything but a type")
    # A CHAR that becomes longer text keeps its blanks.
    how = f" ALTER COLUMN {name.text} TYPE {kind[0]} USING "
    keeps = f"ora.kept({name.text})"
    return [done(how + keeps)]
