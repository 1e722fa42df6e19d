"""Row locks by an engine of SQLAlchemy: what is refused, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aiorwlock_remote import ConfigurationError, Unsupported
from aiorwlock_remote.integrations.sqlalchemy.row_lock import (
    RowLockStatements,
    row_lock,
)
from tests.integrations.fix_alchemy_rows import AlchemySite, Invoice, engine_of
from tests.recipes.fix_rows import sqlite_site
from tests.recipes.row_sites import LOCKED

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.only_on("asyncio", "its engines know no other loop")


@pytest.mark.parametrize("bad", [None, "x", "", 5, []])
@on_asyncio
async def test_a_mode_that_is_none(bad: Any) -> None:  # noqa: ANN401 - of any type
    words, session = RowLockStatements(Invoice, 1), cast("AsyncSession", None)
    for call in (words.take, words.give):
        with pytest.raises(ConfigurationError, match="mode"):
            await call(session, bad)
    for make in (words.lock, words.unlock):
        with pytest.raises(ConfigurationError, match="mode"):
            make(bad, "")


@on_asyncio
async def test_rows_that_cannot_be_locked_are_refused(
    alchemy_shop: AlchemySite,
) -> None:
    bare = Table("bare", MetaData(), Column("id", Integer, primary_key=True))
    pair = Table(
        "pair", MetaData(), *(Column(n, Integer, primary_key=True) for n in "ab")
    )
    async with engine_of(alchemy_shop) as engine:
        for table in (bare, pair, "invoices", None):
            with pytest.raises(ConfigurationError):
                row_lock(engine, table, 1)  # type: ignore[arg-type]
        for engineless in (None, engine.sync_engine, AsyncSession()):
            with pytest.raises(ConfigurationError):
                row_lock(engineless, Invoice, 1)  # type: ignore[arg-type]
        for key in (None, True, "", "a\0b", 2**70):
            with pytest.raises(ConfigurationError, match="a row's key"):
                row_lock(engine, Invoice, key)
        for unfit in ("one", [1]):
            with pytest.raises((ConfigurationError, Unsupported)) as caught:
                await row_lock(engine, Invoice, unfit).read()
            assert "sqlalche.me" not in str(caught.value)
            assert "SQL:" not in str(caught.value)


@on_asyncio
@pytest.mark.parametrize(
    "key", [Invoice.id, Invoice, select(Invoice.id), [1], (1,), {1}, {"id": 1}]
)
async def test_keys_that_are_no_values(alchemy_shop: AlchemySite, key: Any) -> None:  # noqa: ANN401 - of any type
    """An expression would be true of other rows, whose locks are others'."""
    async with engine_of(alchemy_shop) as engine, row_lock(engine, Invoice, 2).write():
        with pytest.raises(ConfigurationError, match="value"):
            await row_lock(engine, Invoice, key).write(timeout=0)
        assert alchemy_shop.plain.state(2) == LOCKED["write"]


@on_asyncio
@pytest.mark.parametrize("lease", [None, 30.0])
async def test_keys_that_no_driver_takes(
    alchemy_shop: AlchemySite, lease: float | None, tmp_path: Path
) -> None:
    """It was not asked: nothing is uncertain."""
    with sqlite_site(tmp_path) as site:
        path = site.url.partition("?rows=")[2]
        for url in (alchemy_shop.url, f"sqlite+aiosqlite:///{path}"):
            engine = create_async_engine(url)
            with pytest.raises(ConfigurationError, match="key"):
                await row_lock(engine, Invoice, object(), lease=lease).write(timeout=0)
            await engine.dispose()


@on_asyncio
async def test_a_constraint_of_the_table(alchemy_shop: AlchemySite) -> None:
    """What else is in the row is nobody's business."""
    alchemy_shop.plain.run("ALTER TABLE invoices ADD account text DEFAULT 'iban DE89'")
    alchemy_shop.plain.run(
        "ALTER TABLE invoices ADD CONSTRAINT none CHECK (lock_reason = '')"
    )
    async with engine_of(alchemy_shop) as engine:
        with pytest.raises(ConfigurationError, match='"none"') as caught:
            await row_lock(engine, Invoice, 1).read("why")
        assert "iban" not in str(caught.value)
        assert "constraint" in caught.value.hint


@on_asyncio
async def test_a_right_that_is_missing(alchemy_shop: AlchemySite) -> None:
    role = f"clerk_{alchemy_shop.url.rpartition('/')[2]}"
    alchemy_shop.plain.run(f"CREATE ROLE {role} LOGIN")
    alchemy_shop.plain.run(f"GRANT SELECT ON invoices TO {role}")
    before, _, after = alchemy_shop.url.partition("://")
    url = f"{before}://{role}@{after.rpartition('@')[2]}"
    try:
        async with engine_of(AlchemySite(alchemy_shop.plain, url)) as engine:
            with pytest.raises(Unsupported, match="denied") as caught:
                await row_lock(engine, Invoice, 1).read()
            assert "GRANT SELECT, UPDATE" in caught.value.hint
    finally:
        alchemy_shop.plain.run(f"DROP OWNED BY {role}")
        alchemy_shop.plain.run(f"DROP ROLE {role}")


@on_asyncio
async def test_not_where_all_connections_are_one() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    for where in (engine, AsyncSession(engine)):
        with pytest.raises(ConfigurationError, match="connections are one"):
            row_lock(where, Invoice, 1)


@pytest.mark.only_on("trio", "where it cannot be")
async def test_not_under_trio() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match="asyncio"):
        row_lock(engine, Invoice, 1)
