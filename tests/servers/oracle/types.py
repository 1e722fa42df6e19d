"""Oracle's types in declarations, casts and tables, as PostgreSQL spells them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.oracle.errors import OracleError, unsupported
from tests.servers.oracle.tokens import Token, after, closing

_SIMPLE = {
    "BINARY_DOUBLE": "float8",
    "BINARY_INTEGER": "integer",
    "BLOB": "bytea",
    "BOOLEAN": "boolean",
    "CLOB": "text",
    "DATE": "timestamp(0)",
    "INT": "numeric(38)",
    "INTEGER": "numeric(38)",
    "PLS_INTEGER": "integer",
    "SMALLINT": "numeric(38)",
}
_TEXTS = {"VARCHAR2": "varchar", "VARCHAR": "varchar", "CHAR": "char"}

#: Types of PostgreSQL that Oracle has not.
FOREIGN = frozenset(
    {"BIGINT", "BIGSERIAL", "BOOL", "BYTEA", "INT4", "INT8", "JSONB", "SERIAL"}
    | {"TEXT", "TIMESTAMPTZ", "UUID"}
)


def type_at(
    found: Sequence[Token], at: int, longest: int = 4000
) -> tuple[str, int] | None:
    """The type that begins there and its last token; nothing if none begins.

    ``longest``: of a text; 4,000 bytes in tables, 32,767 in PL/SQL.
    """
    name = found[at].word
    if found[at].kind != "word":
        return None
    if name in _SIMPLE:
        return _SIMPLE[name], at
    if name in _TEXTS:
        size, end = _size(found, at)
        if size is None and name != "CHAR":
            raise OracleError(906, "missing left parenthesis")
        length = int(size[0]) if size else 1
        if length > longest:
            raise OracleError(910, "specified length too long for its datatype")
        return f"{_TEXTS[name]}({length})", end
    if name == "NUMBER":
        size, end = _size(found, at)
        return (f"numeric({','.join(size)})" if size else "numeric"), end
    if name == "RAW":
        return "bytea", _size(found, at)[1]
    if name == "TIMESTAMP":
        return _timestamp(found, at)
    if name == "INTERVAL":
        return _interval(found, at)
    if name in {"NVARCHAR2", "NCHAR", "NCLOB", "LONG", "FLOAT", "BFILE", "JSON"}:
        raise unsupported(f"type {name}")
    return None


def _size(found: Sequence[Token], at: int) -> tuple[list[str] | None, int]:
    """The numbers in brackets behind a type, where its last token is."""
    here = after(found, at)
    if here >= len(found) or found[here].text != "(":
        return None, at
    end = closing(found, here)
    return [token.text for token in found[here:end] if token.kind == "number"], end


def _words(found: Sequence[Token], at: int, *words: str) -> int | None:
    """Where the last of these words stands that follow there, if they do."""
    for word in words:
        at = after(found, at)
        if at >= len(found) or found[at].word != word:
            return None
    return at


def _timestamp(found: Sequence[Token], at: int) -> tuple[str, int]:
    size, end = _size(found, at)
    digits = size[0] if size else "6"
    if int(digits) > 6:
        raise unsupported("more than microseconds")
    zoned = _words(found, end, "WITH", "TIME", "ZONE")
    if zoned is not None:
        return f"timestamptz({digits})", zoned
    return f"timestamp({digits})", end


def _interval(found: Sequence[Token], at: int) -> tuple[str, int] | None:
    day = _words(found, at, "DAY")
    if day is None:  # a literal
        return None
    size, end = _size(found, day)
    second = _words(found, end, "TO", "SECOND")
    if second is None:
        raise unsupported("an interval other than DAY TO SECOND")
    _, end = _size(found, second)
    if size is None or int(size[0]) <= 2:
        return "ora.interval_days2", end
    return "interval", end
