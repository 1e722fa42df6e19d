"""Every statement against Oracle's grammar, by a parser that knows no PostgreSQL.

The statements inside the blocks are taken out of their PL/SQL, which sqlglot does not
know, and parsed one by one.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import sqlfluff
import sqlglot
from sqlfluff.api.simple import APIParsingError
from sqlglot import exp

from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.backends.oracle.statements import statement, statements_of

NAMES = list(load_statements("aiorwlock_remote.backends.oracle", "statements.sql"))

BLOCKS = ("look", "swap")
DML = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE)\b[^;]*;", re.DOTALL)
INTO = re.compile(r"\bINTO\s+v_\w+(?:\s*,\s*v_\w+)*")


def inside(block: str) -> list[str]:
    """The SQL statements of a block, as they would stand alone."""
    found = [part.rstrip(";") for part in DML.findall(_body(block))]
    return [INTO.sub("", one) for one in found]


def _body(block: str) -> str:
    return statement(block).partition("BEGIN")[2].replace("SQL%ROWCOUNT", "1")


def parsed(text: str) -> exp.Expr:
    """One statement, which is nothing but that."""
    (tree,) = sqlglot.parse(text, dialect="oracle")
    assert tree is not None
    assert not isinstance(tree, exp.Command), "not understood"
    return tree


PLAIN = [name for name in NAMES if name not in BLOCKS]


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_statement(name: str) -> None:
    parsed(statement(name, "OWNER"))


@pytest.mark.parametrize("block", BLOCKS)
def test_the_statements_of_a_block(block: str) -> None:
    found = inside(block)
    kinds = {"look": ["Select"], "swap": ["Delete", "Insert", "Select", "Update"]}
    trees = [parsed(one) for one in found]
    assert sorted({type(tree).__name__ for tree in trees}) == kinds[block]
    assert len(found) == {"look": 1, "swap": 9}[block]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_tables_of_a_block_are_qualified(block: str) -> None:
    text = statement(block, "OWNER")
    bare = re.findall(r"(?<!OWNER\.)\b(?:doormans|mutex_locks)\b", text)
    assert bare == []


def test_grants_and_tables() -> None:
    printed = list(statements_of("OWNER", "APP"))
    assert [type(parsed(one)).__name__ for one in printed] == [
        *("Create", "Create", "Grant", "Grant")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING",
        "SELECT a FROM t LIMIT",
        "UPDATE t SET (a = 1 WHERE b = 2",
    ],
)
def test_statements_that_are_no_oracle_are_found(text: str) -> None:
    """The control: the parser refuses, or writes it otherwise."""
    try:
        again = parsed(text).sql(dialect="oracle")
    except sqlglot.errors.ParseError:
        return
    assert "CONFLICT" not in again or again == text, again


@pytest.mark.parametrize("block", BLOCKS)
def test_the_shape_of_a_block(block: str) -> None:
    """What PL/SQL asks for: every part closed, names short, COMMIT at the very end."""
    words = re.findall(r"[A-Za-z_]\w*|:\w+|[;()]", statement(block))
    begins = sum(word == "BEGIN" for word in words)
    ends = [following for word, following in itertools.pairwise(words) if word == "END"]
    assert ends.count(";") == begins
    assert ends.count("IF") == _count(words, "IF") - ends.count("IF")
    assert words.count("(") == words.count(")")
    if block == "swap":
        assert words[-4:] == ["COMMIT", ";", "END", ";"]
        assert words.count("COMMIT") == 1
    assert all(len(word) <= 30 for word in words)


def _count(words: list[str], wanted: str) -> int:
    return sum(word == wanted for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_depends_on_a_language(name: str) -> None:
    """A session sorts texts as NLS_SORT says, and may compare them otherwise."""
    texts = inside(name) if name in BLOCKS else [statement(name)]
    assert not any(parsed(one).find(exp.Order) for one in texts)


def test_no_bind_is_a_reserved_word() -> None:
    """They have a prefix, which no word of Oracle's has."""
    for name in NAMES:
        text = re.sub(r"'[^']*'", "", statement(name))
        for bind in re.findall(r":(\w+)", text):
            assert bind[:2] in {"i_", "t_", "n_", "o_"}, bind


# ------------------------------------------------------------------------------
# Whole blocks against a grammar of PL/SQL that other people wrote (sqlfluff's).
#
# It is a linter's: some semicolons may be missing without it noticing. The double of
# Oracle (tests/servers/oracle) is stricter there.


# What stands in the block of a swap, and what may not stand there instead.
DAMAGE = {
    "THEN": "",
    "END IF;": "",
    "WHEN ": "",
    ":= 1": "= 1",
    "NVL(": "NVL",
}


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


# ----------------------------- The documentation shows the tables that are made


PAGE = Path(__file__).parents[3] / "docs" / "stores" / "oracle.md"


def flat(sql: str) -> str:
    return " ".join(re.sub(r"--.*", "", sql).split())


@pytest.mark.parametrize("name", ["schema_locks", "schema_doormans"])
def test_tables_stand_on_the_page_as_they_are_made(name: str) -> None:
    assert flat(statement(name)) in flat(PAGE.read_text("utf-8"))


def test_the_page_says_what_the_store_was_tested_with() -> None:
    text = flat(PAGE.read_text("utf-8"))
    assert "never yet run on Oracle itself" in text
    assert "ORACLE_DSN" in text
