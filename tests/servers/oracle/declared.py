"""What a block declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.servers.oracle.errors import STATES, OracleError, state_of, unsupported
from tests.servers.oracle.expressions import rewritten
from tests.servers.oracle.grammar import check_functions
from tests.servers.oracle.tokens import Token, done
from tests.servers.oracle.types import FOREIGN, type_at

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
