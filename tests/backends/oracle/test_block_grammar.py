"""Whole blocks against a grammar of PL/SQL that other people wrote (sqlfluff's).

It is a linter's: some semicolons may be missing without it noticing. The double of
Oracle (tests/servers/oracle) is stricter there.
"""

from __future__ import annotations

import pytest
import sqlfluff
from sqlfluff.api.simple import APIParsingError

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.oracle.statements import statement

# What stands in the block of a swap, and what may not stand there instead.
DAMAGE = {
    "THEN": "",
    "END IF;": "",
    "WHEN ": "",
    ":= 1": "= 1",
    "NVL(": "NVL",
}

NAMES = list(load_statements("aiorwlock_remote.backends.oracle", "statements.sql"))


def parse(text: str) -> None:
    """Raises for what is not Oracle's."""
    sqlfluff.parse(text, dialect="oracle")


@pytest.mark.parametrize("name", NAMES)
def test_a_statement(name: str) -> None:
    parse(statement(name, "OWNER"))


@pytest.mark.slow
@pytest.mark.parametrize(("good", "bad"), DAMAGE.items())
def test_damage_is_found(good: str, bad: str) -> None:
    block = statement("swap")
    assert good in block
    with pytest.raises(APIParsingError):
        parse(block.replace(good, bad, 1))
