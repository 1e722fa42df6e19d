"""What is of the wrong type is refused by name, before anything is done with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Mapped, mapped_column

from aiorwlock_remote import BadFence, ConfigurationError
from aiorwlock_remote.fencing.cassandra import accepted, fenced_update, fenced_values
from aiorwlock_remote.fencing.files import FencedFile
from aiorwlock_remote.fencing.header import read_fence
from aiorwlock_remote.fencing.redis import fence_key, fenced_set
from aiorwlock_remote.fencing.sql import FencedTable
from aiorwlock_remote.integrations.sqlalchemy.fencing import fenced, fenced_get
from tests.fencing.resources import Base, Row

CELLS = FencedTable("cells")

NO_NAMES: list[Any] = [None, b"x", 5, 1.5, [], {}, object()]
NO_SEQUENCES: list[Any] = [None, 5, object(), [None], [b"x"], b"x", "body"]


@pytest.mark.parametrize("bad", NO_NAMES)
def test_names(bad: Any) -> None:  # noqa: ANN401 - of any type
    for word in ("table", "key", "fence", "style"):
        given: dict[str, Any] = {"table": "cells", word: bad}
        with pytest.raises(ConfigurationError):
            FencedTable(**given)
    with pytest.raises(ConfigurationError):
        fenced_update(bad, ["a"], ["id"])
    with pytest.raises(ConfigurationError):
        fenced_update("t", ["a"], ["id"], fence=bad)
    with pytest.raises(ConfigurationError):
        fence_key(bad)


@pytest.mark.parametrize("bad", NO_SEQUENCES)
def test_columns(bad: Any) -> None:  # noqa: ANN401
    """The letters of a text are not meant: "body" is not b, o, d and y."""
    with pytest.raises(ConfigurationError):
        CELLS.select_statement(1, bad)
    with pytest.raises(ConfigurationError):
        fenced_update("t", bad, ["id"])
    with pytest.raises(ConfigurationError):
        fenced_update("t", ["a"], bad)


def test_columns_that_can_be_looked_at_only_once() -> None:
    names = iter(["a", "b"])
    assert CELLS.select_statement(1, names)[0].startswith("SELECT a, b FROM")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [*NO_SEQUENCES, [], ["value"], {None: 1}])
def test_values(bad: Any) -> None:  # noqa: ANN401
    with closing(sqlite3.connect(":memory:")) as db, pytest.raises(ConfigurationError):
        CELLS.write(db.cursor(), 1, 5, bad)
    if not isinstance(bad, list | dict):
        with pytest.raises(ConfigurationError):
            fenced_values(bad, [7], 5)
        with pytest.raises(ConfigurationError):
            fenced_values([99], bad, 5)


def test_a_statement_that_was_no_transaction() -> None:
    with pytest.raises(ConfigurationError):
        accepted([], "stock/7", 5)


@pytest.mark.parametrize("bad", ["", "60", True, [60]])
@pytest.mark.asyncio
async def test_a_life_that_is_no_number(bad: Any) -> None:  # noqa: ANN401
    client: Any = None
    with pytest.raises(ConfigurationError):
        await fenced_set(client, "a", "x", 5, ttl=bad)


def test_headers() -> None:
    bad: Any
    for bad in ([None], [b"5"], [5]):
        with pytest.raises(BadFence):
            read_fence(bad)
    for bad in (None, "5", 5, {"Lock-Fence": "5"}):
        with pytest.raises(ConfigurationError):
            read_fence(bad)


class Plain(Base):
    """Has no fence."""

    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("bad", [None, "cells", 5, Plain, Row(), type, Row.__table__])
@pytest.mark.asyncio
async def test_mapped_classes(bad: Any) -> None:  # noqa: ANN401
    session: Any = None
    with pytest.raises(ConfigurationError):
        await fenced_get(session, bad, 1, 5)


@pytest.mark.asyncio
async def test_keys_of_mapped_classes() -> None:
    session: Any = None
    with pytest.raises(ConfigurationError, match="1 key column"):
        await fenced_get(session, Row, (1, 2), 5)


def test_changes() -> None:
    bad: Any
    for bad in (None, "UPDATE cells", select(Row), insert(Row), update(Plain)):
        with pytest.raises(ConfigurationError):
            fenced(bad, 5)


@pytest.mark.parametrize("bad", [None, "text", 5, [1], object()])
def test_data(tmp_path: Path, bad: Any) -> None:  # noqa: ANN401
    """Nothing is on the disk of what cannot be written: not its fence either."""
    with pytest.raises(ConfigurationError):
        FencedFile(tmp_path / "data").write(5, bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [None, b"x", 5, "", "a\0b", "\ud800"])
def test_names_of_files(bad: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigurationError):
        FencedFile(bad)
