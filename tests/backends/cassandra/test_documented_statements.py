"""The documentation shows the statements that are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiorwlock_remote.backends.cassandra.options import Options, statement

PAGE = Path(__file__).parents[3] / "docs" / "stores" / "cassandra.md"


def flat(cql: str) -> str:
    return " ".join(re.sub(r"--.*", "", cql).split())


@pytest.mark.parametrize(
    "name", ["schema_pair", "widen", "insert", "update_record", "delete"]
)
def test_statements_stand_on_the_page_as_they_are_run(name: str) -> None:
    cql = flat(statement(name, Options("locks")))
    cql = cql.replace('"locks"."mutex_locks"', "mutex_locks")
    assert cql in flat(PAGE.read_text("utf-8"))
