"""SELECT … FOR UPDATE, and how long it waits."""

from __future__ import annotations

from collections.abc import Sequence

from tests.servers.oracle.errors import OracleError
from tests.servers.oracle.tokens import Token, after, text_after


def locks(found: Sequence[Token]) -> bool:
    """Whether the statement locks the rows it finds."""
    return any(
        token.word == "FOR" and text_after(found, at) == "UPDATE"
        for at, token in enumerate(found)
    )


def without_wait(found: Sequence[Token]) -> tuple[list[Token], int | None]:
    """FOR UPDATE WAIT n without the end of it, and n, which are seconds."""
    if locks(found):
        for at, token in enumerate(found):
            number = after(found, at)
            if token.word == "WAIT" and number < len(found):
                if found[number].kind != "number":
                    raise OracleError(30005, "missing or invalid WAIT interval")
                rest = [*found[:at], *found[number + 1 :]]
                return rest, int(found[number].text)
    return list(found), None
