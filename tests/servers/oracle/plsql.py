"""Anonymous blocks: each becomes a function in PostgreSQL."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from tests.servers.oracle.body import Body
from tests.servers.oracle.embedded import Need
from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.tokens import OUT, Bind, Token, done, tokens

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
