"""Expressions, the same in SQL and in PL/SQL."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.oracle.errors import unsupported
from tests.servers.oracle.grammar import FUNCTIONS, PACKAGED
from tests.servers.oracle.tokens import Token, after, literal, quoted, text_after
from tests.servers.oracle.types import type_at

_WORDS = {
    "CURRENT_SCHEMA": "upper(current_schema)",
    "DUAL": "ora.dual",
    "MINUS": "EXCEPT",
    "SYSDATE": "date_trunc('second', clock_timestamp() AT TIME ZONE 'UTC')",
    "SYSTIMESTAMP": "clock_timestamp()",
    "USER": "upper(current_user)",
}
_REFUSED = frozenset(
    {"CONNECT", "LEVEL", "NEXTVAL", "ROWID", "ROWNUM", "DECODE", "NVL2"}
)


def rewritten(found: Sequence[Token], longest: int = 4000) -> str:
    """Tokens of Oracle's in PostgreSQL's words; binds must be replaced already."""
    out: list[str] = []
    at = 0
    before = ""
    while at < len(found):
        token = found[at]
        if token.kind == "word":
            text, at = _word(found, at, before, longest)
            out.append(text)
        else:
            out.append(_other(found, at, before))
        if not token.blank:
            before = token.word
        at += 1
    return "".join(out)


def _other(found: Sequence[Token], at: int, before: str) -> str:
    token = found[at]
    if token.kind == "text":
        return literal(token.text)
    if token.kind == "quoted":
        return quoted(token.text)
    if token.kind in {"hint", "comment"}:
        return " "
    if token.kind == "number" and "/" in {before, text_after(found, at)}:
        return f"({token.text}::numeric)"  # one of PostgreSQL's integers has no rest
    return token.text


def _word(
    found: Sequence[Token], at: int, before: str, longest: int
) -> tuple[str, int]:
    token = found[at]
    word = token.word
    if before == ".":
        return token.text, at
    if before == "AS" and (cast := type_at(found, at, longest)):
        return cast
    if word == "DATE" and found[min(after(found, at), len(found) - 1)].kind == "text":
        return "timestamp(0)", at
    dot = after(found, at)
    name = after(found, dot)
    if dot < len(found) and found[dot].text == "." and name < len(found):
        packaged = PACKAGED.get((word, found[name].word))
        if packaged:
            return packaged, name
    if word in _REFUSED:
        raise unsupported(word)
    if word in FUNCTIONS and dot < len(found) and found[dot].text == "(":
        return FUNCTIONS[word], at
    return _WORDS.get(word, token.text), at
