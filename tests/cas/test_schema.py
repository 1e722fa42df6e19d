"""What an error says about a table that does not fit."""

from __future__ import annotations

import pytest

from aiorwlock_remote import Unsupported
from aiorwlock_remote.cas.driver.schema import ExpectedTables

TEXT = ("varchar", "text")
EXPECTED = ExpectedTables(
    types={
        "name": TEXT,
        "number": ("integer",),
        "text": TEXT,
        "time": ("timestamp",),
        "flag": ("boolean",),
        "record": TEXT,
    },
    added_columns={"version": "varchar"},
    add_column="ADD COLUMN {} {}",
    hint="create the tables",
)


@pytest.mark.parametrize(
    ("name", "kind", "what", "hint"),
    [
        (
            "version",
            None,
            "h: doormans has no column version",
            "ALTER TABLE doormans ADD COLUMN version varchar",
        ),
        ("record", None, "h: doormans has no column record", "create the tables"),
        (
            "record",
            "integer",
            "h: doormans.record is integer, not varchar",
            "create the tables",
        ),
    ],
)
def test_a_column_that_does_not_fit(
    name: str, kind: str | None, what: str, hint: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        EXPECTED.check_column("doormans", name, kind, "h")
    assert (caught.value.what, caught.value.hint) == (what, hint)


def test_every_type_that_is_permitted_fits() -> None:
    for kind in TEXT:
        EXPECTED.check_column("doormans", "record", kind, "h")


def test_a_table_that_is_not_there() -> None:
    EXPECTED.check_table(["ticket"], "mutex_locks", "h")
    for hint in ("", "ask the owner"):
        with pytest.raises(Unsupported, match="mutex_locks does not exist") as caught:
            EXPECTED.check_table([], "mutex_locks", "h", hint)
        assert caught.value.hint == (hint or "create the tables")
