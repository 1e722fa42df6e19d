"""The documentation shows the tables that are made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiorwlock_remote.backends.oracle.statements import statement

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
