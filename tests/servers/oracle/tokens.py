"""Statements as tokens: the common ground of all translating."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.servers.oracle.errors import OracleError, unsupported

_PATTERN = re.compile(
    r"""(?P<space>\s+)
    |(?P<hint>/\*\+.*?\*/)
    |(?P<comment>--[^\n]*|/\*.*?\*/)
    |(?P<text>[qQ]'\[.*?\]'|[qQ]'\{.*?\}'|[qQ]'\(.*?\)'|[qQ]'<.*?>'|'(?:[^']|'')*')
    |(?P<quoted>"[^"]*")
    |(?P<assign>:=)
    |(?P<bind>:\s*(?:[A-Za-z][\w$#]*|\d+|"[^"]*"))
    |(?P<number>\d+(?:\.(?!\.)\d*)?(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z][\w$#]*(?:%[A-Za-z]+)?)
    |(?P<sign>\|\||<=|>=|<>|!=|=>|\*\*|\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)

# Signs PostgreSQL knows and Oracle does not; a lone colon is one of them ("::").
_FOREIGN = frozenset("$:?[]{}~`\\&#^|!")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """A word in capitals, any other token as it is."""
        return self.text.upper() if self.kind == "word" else self.text

    @property
    def blank(self) -> bool:
        return self.kind in {"space", "comment", "hint"}

    @property
    def bind(self) -> str:
        """The name of a bind: in capitals unless it was quoted."""
        name = self.text[1:].strip()
        return name[1:-1] if name.startswith('"') else name.upper()


def words(text: str) -> frozenset[str]:
    """A set of words in one line."""
    return frozenset(text.split())


def done(text: str) -> Token:
    """What a translation puts in for a token."""
    return Token("done", text)


def tokens(statement: str) -> list[Token]:
    found = [
        Token(match.lastgroup or "", match.group())
        for match in _PATTERN.finditer(statement)
    ]
    for token in found:
        if token.kind == "sign" and token.text in _FOREIGN:
            raise OracleError(911, f"invalid character {token.text}")
    return found


def after(found: Sequence[Token], at: int) -> int:
    """Where the next token is that is not blank; the length when there is none."""
    at += 1
    while at < len(found) and found[at].blank:
        at += 1
    return at


def text_after(found: Sequence[Token], at: int) -> str:
    at = after(found, at)
    return found[at].word if at < len(found) else ""


def text_before(found: Sequence[Token], at: int, count: int = 1) -> str:
    """The last, or the last but ``count``, that is not blank before that place."""
    before = [token.word for token in found[:at] if not token.blank]
    return before[-count] if len(before) >= count else ""


def closing(found: Sequence[Token], at: int) -> int:
    """Where the bracket is closed that is opened there."""
    depth = 0
    for here in range(at, len(found)):
        depth += (found[here].text == "(") - (found[here].text == ")")
        if not depth:
            return here
    raise OracleError(907, "missing right parenthesis")


def arguments(found: Sequence[Token], at: int) -> tuple[list[list[Token]], int]:
    """What stands between the brackets opened there, and where they are closed."""
    end = closing(found, at)
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in found[at + 1 : end]:
        depth += (token.text == "(") - (token.text == ")")
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts, end


def literal(text: str) -> str:
    """A text as PostgreSQL spells it; the empty one is NULL in Oracle."""
    if text[0] in "qQ":
        text = "'" + text[3:-2].replace("'", "''") + "'"
    return "NULL" if text == "''" else text


def quoted(text: str) -> str:
    """A quoted name: Oracle folds names to capitals where PostgreSQL folds to small."""
    name = text[1:-1]
    if name == name.upper():
        return f'"{name.lower()}"'
    if name == name.lower():
        raise unsupported(f"quoted name in small letters {text}")
    return text


@dataclass(frozen=True, slots=True)
class Bind:
    name: str
    direction: int = 32
    returning: bool = False

    @property
    def sent(self) -> bool:
        """Whether the client sends a value for it when it executes again."""
        return self.direction != OUT and not self.returning


IN, OUT, IN_OUT = 32, 16, 48


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement is, and what it is bound to, in the order of the wire."""

    kind: str
    binds: tuple[Bind, ...]


def analysed(statement: str) -> Statement:
    """``kind``: query, dml, plsql, or ddl for everything else."""
    found = [token for token in tokens(statement) if not token.blank]
    first = next((token.word for token in found if token.kind == "word"), "")
    if first in {"BEGIN", "DECLARE"}:
        return Statement("plsql", _block_binds(found))
    if first in {"SELECT", "WITH"}:
        return Statement("query", _sql_binds(found))
    if first in {"INSERT", "UPDATE", "DELETE", "MERGE"}:
        return Statement("dml", _sql_binds(found))
    if not first:
        raise OracleError(900, "invalid SQL statement")
    return Statement("ddl", ())


def _sql_binds(found: Sequence[Token]) -> tuple[Bind, ...]:
    """Each occurrence is one; behind RETURNING … INTO they are written."""
    binds: list[Bind] = []
    returning = into = False
    for token in found:
        if token.word == "RETURNING":
            returning = True
        elif returning and token.word == "INTO":
            into = True
        elif token.kind == "bind":
            binds.append(Bind(token.bind, returning=into))
    return tuple(binds)


def _block_binds(found: Sequence[Token]) -> tuple[Bind, ...]:
    """Each name is one; how it is used tells whether it is read or written."""
    read: set[str] = set()
    written: set[str] = set()
    names: dict[str, None] = {}
    into = False
    before = ""
    for at, token in enumerate(found):
        if token.kind == "word":
            if token.word == "INTO":
                into = before not in {"INSERT", "MERGE"}
            elif token.word in {"FROM", "WHERE", "VALUES", "USING"}:
                into = False
            before = token.word
        elif token.text == ";":
            into = False
        elif token.kind == "bind":
            names[token.bind] = None
            target = at + 1 < len(found) and found[at + 1].kind == "assign"
            (written if into or target else read).add(token.bind)

    def direction(name: str) -> int:
        if name not in written:
            return IN
        return IN_OUT if name in read else OUT

    return tuple(Bind(name, direction(name)) for name in names)
