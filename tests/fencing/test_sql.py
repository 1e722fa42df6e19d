"""Every style's texts and parameters, names that are none, rows that are not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, get_args

import pytest

from aiorwlock_remote import ConfigurationError, StaleFence
from aiorwlock_remote.fencing.sql import FencedTable, ParamStyle
from tests.fencing.resources import CREATE, INSERT

UPDATE = "UPDATE s.cells SET a = {}, b = {}, fence = {} WHERE id = {} AND fence <= {}"
SELECT = "SELECT a, b FROM s.cells WHERE id = {}"
TEXTS = {
    "qmark": ("?",) * 5,
    "format": ("%s",) * 5,
    "pyformat": tuple(f"%(p{n})s" for n in range(1, 6)),
    "named": tuple(f":p{n}" for n in range(1, 6)),
    "numeric": tuple(f":{n}" for n in range(1, 6)),
    "dollar": tuple(f"${n}" for n in range(1, 6)),
}


def test_every_style_is_here() -> None:
    assert set(TEXTS) == set(get_args(ParamStyle))


@pytest.mark.parametrize("style", TEXTS)
def test_texts(style: Any) -> None:  # noqa: ANN401 - one of the styles
    cells = FencedTable("s.cells", style=style)
    text, bound = cells.update_statement(7, 5, {"a": 1, "b": "x"})
    assert text == UPDATE.format(*TEXTS[style])
    values = list(bound.values()) if isinstance(bound, dict) else list(bound)
    assert values == [1, "x", 5, 7, 5]
    text, bound = cells.select_statement(7, ["a", "b"])
    locked = style in ("format", "pyformat", "dollar")
    assert text == SELECT.format(TEXTS[style][0]) + " FOR UPDATE" * locked
    swapped = FencedTable("s.cells", style=style, for_update=not locked)
    assert swapped.select_statement(7, ["a", "b"])[0].endswith("UPDATE") is not locked


BAD = ["", "a b", "a;", 'a"', "a--", "1a", "a.b.c.d", "é", "a\n", ".a", "a" * 200]


@pytest.mark.parametrize("name", BAD)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ConfigurationError):
        FencedTable(name)
    with pytest.raises(ConfigurationError):
        FencedTable("cells", key=name)
    with pytest.raises(ConfigurationError):
        FencedTable("cells", fence=name)
    with pytest.raises(ConfigurationError):
        FencedTable("cells").update_statement(1, 1, {name: 1})
    with pytest.raises(ConfigurationError):
        FencedTable("cells").select_statement(1, [name])


def test_columns_that_are_not_set_so() -> None:
    cells = FencedTable("cells")
    for names in (["id"], ["fence"], ["Fence"], ["ID"], ["a", "A"]):
        with pytest.raises(ConfigurationError, match="twice"):
            cells.update_statement(1, 1, dict.fromkeys(names, 1))
    with pytest.raises(ConfigurationError, match="twice"):
        FencedTable("cells", key="Fence")
    with pytest.raises(ConfigurationError):
        cells.select_statement(1, [])
    with pytest.raises(ConfigurationError):
        FencedTable("cells", style="percent")  # type: ignore[arg-type]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(CREATE)
        db.execute(INSERT)
        yield db


def test_a_row_that_is_not_there_is_not_a_stale_fence(db: sqlite3.Connection) -> None:
    cursor, cells = db.cursor(), FencedTable("cells")
    assert cells.read(cursor, 2, 5, ["value"]) is None
    assert not cells.write(cursor, 2, 5, {"value": 1})


def test_a_row_whose_fence_is_null_is_refused(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE cells")
    db.execute("CREATE TABLE cells (id, value, fence)")
    db.execute("INSERT INTO cells VALUES (1, 0, NULL)")
    with pytest.raises(StaleFence):
        FencedTable("cells").write(db.cursor(), 1, 5, {"value": 1})


class CountsChanges:
    """A cursor of MySQL's drivers: rows that came out as they were do not count."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.rowcount = -1

    def execute(self, operation: str, parameters: Any, /) -> None:  # noqa: ANN401
        before = list(self._cursor.execute("SELECT * FROM cells"))
        if operation.startswith("SELECT"):
            assert operation.endswith(" FOR UPDATE")
        self._cursor.execute(operation.removesuffix(" FOR UPDATE"), parameters)
        if operation.startswith("UPDATE"):
            self.rowcount = self._cursor.rowcount
            if list(self._cursor.execute("SELECT * FROM cells")) == before:
                self.rowcount = 0

    def fetchone(self) -> Any:  # noqa: ANN401
        return self._cursor.fetchone()


def test_an_equal_write_is_accepted_where_only_changes_are_counted(
    db: sqlite3.Connection,
) -> None:
    cursor, cells = (
        CountsChanges(db.cursor()),
        FencedTable("cells", for_update=True),
    )
    for _ in range(2):
        assert cells.write(cursor, 1, 5, {"value": 9})
        assert cells.read(cursor, 1, 5, ["value"]) == (9,)
    with pytest.raises(StaleFence):
        cells.write(cursor, 1, 4, {"value": 9})


class SeesASnapshot:
    """A cursor of a transaction whose reads show the row as it was before."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.rowcount = -1

    def execute(self, operation: str, parameters: Any, /) -> None:  # noqa: ANN401
        self._cursor.execute(operation, parameters)
        self.rowcount = self._cursor.rowcount

    def fetchone(self) -> tuple[int]:
        return (5,)


def test_a_snapshot_does_not_make_a_refused_write_a_good_one(
    db: sqlite3.Connection,
) -> None:
    cursor, cells = SeesASnapshot(db.cursor()), FencedTable("cells")
    cells.write(db.cursor(), 1, 7, {"value": 1})
    for fence in (5, 6):
        with pytest.raises(StaleFence) as caught:
            cells.write(cursor, 1, fence, {"value": 9})
        assert caught.value.highest is None


def test_names_go_in_as_they_are_and_values_are_bound(db: sqlite3.Connection) -> None:
    cursor, cells = db.cursor(), FencedTable("cells")
    assert not cells.write(cursor, "1; DROP TABLE cells", 5, {"value": 9})
    assert cells.read(cursor, 1, 5, ["value"]) == (0,)
