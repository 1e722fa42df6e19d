"""Transactions and locks of the double of Oracle, as the driver meets them."""

from __future__ import annotations

import asyncio

import oracledb
import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle_sessions import (
    SIT,
    blocked,
    number,
    refused,
    seat,
    session,
    with_tables,
)

pytestmark = pytest.mark.asyncio


async def test_a_key_that_is_taken(user: OracleUser) -> None:
    async with with_tables(user) as c:
        await c.execute(SIT, seat())
        with pytest.raises(oracledb.IntegrityError) as caught:
            await c.execute(SIT, seat(ticket="other"))
        error = caught.value.args[0]
        assert (error.full_code, error.code, error.isrecoverable) == (
            *("ORA-00001", 1),
            False,
        )
        assert "SEATS_PK" in error.message
        await c.execute(SIT, seat(2))


async def test_commit_and_rollback(user: OracleUser) -> None:
    async with (
        with_tables(user, autocommit=False) as c,
        session(user) as other,
    ):
        await c.execute(SIT, seat())
        open_before = c.transaction_in_progress
        assert await number(other, "SELECT COUNT(*) FROM seats") == 0
        await c.rollback()
        assert await number(c, "SELECT COUNT(*) FROM seats") == 0
        await c.execute(SIT, seat())
        await c.commit()
        assert (open_before, c.transaction_in_progress) == (True, False)
        assert await number(other, "SELECT COUNT(*) FROM seats") == 1


async def test_a_failed_statement_undoes_itself_alone(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c:
        await c.execute(SIT, seat())
        with refused(1):
            await c.execute(SIT, seat())
        await c.execute(SIT, seat(2))
        await c.commit()
        assert await number(c, "SELECT COUNT(*) FROM seats") == 2


async def test_ddl_commits(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c:
        await c.execute(SIT, seat())
        await c.execute("CREATE TABLE more (a NUMBER)")
        await c.rollback()
        assert await number(c, "SELECT COUNT(*) FROM seats") == 1


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_an_insert_waits_for_another(user: OracleUser, how: str) -> None:
    async with with_tables(user, autocommit=False) as c, session(user) as other:
        await c.execute(SIT, seat())
        waits = asyncio.create_task(other.execute(SIT, seat(ticket="other")))
        await blocked(user)
        if how == "commit":
            await c.commit()
            with refused(1):
                await waits
        else:
            await c.rollback()
            await waits


async def test_a_pool(user: OracleUser) -> None:
    async with with_tables(user):
        pool = oracledb.create_pool_async(**user.login, min=2, max=6, increment=1)

        async def one(n: int) -> bool:
            async with pool.acquire() as c:
                c.autocommit = True
                try:
                    await c.execute(SIT, seat(ticket=f"{n}"))
                except oracledb.IntegrityError:
                    return False
                return True

        assert sum(await asyncio.gather(*map(one, range(24)))) == 1
        await pool.close()


async def test_locked_rows(user: OracleUser) -> None:
    async with with_tables(user) as c, session(user) as other:
        await c.execute(SIT, seat())
        c.autocommit = other.autocommit = False
        lock = "SELECT ticket FROM seats FOR UPDATE"
        await c.fetchall(lock)
        with refused(54):
            await other.fetchall(f"{lock} NOWAIT")
        assert await other.fetchall(f"{lock} SKIP LOCKED") == []
        with refused(30006):
            await other.fetchall(f"{lock} WAIT 1")
        await c.rollback()
        assert await other.fetchall(lock) == [("t",)]


async def test_a_deadlock(user: OracleUser) -> None:
    async with with_tables(user) as c, session(user) as other:
        await c.execute(SIT, seat(1))
        await c.execute(SIT, seat(2))
        c.autocommit = other.autocommit = False
        update = "UPDATE seats SET ticket = 'x' WHERE num = :n"
        await c.execute(update, {"n": 1})
        await other.execute(update, {"n": 2})
        waits = {
            asyncio.create_task(c.execute(update, {"n": 2})): c,
            asyncio.create_task(other.execute(update, {"n": 1})): other,
        }
        first, rest = await asyncio.wait(waits, return_when="FIRST_COMPLETED")
        (loser,) = first
        with refused(60):
            await loser
        # Only its statement is undone: the other still waits for its row.
        (winner,) = rest
        await waits[loser].rollback()
        await winner


async def test_a_pipeline_of_23ai(oracle_user: OracleUser) -> None:
    async with with_tables(oracle_user) as c:
        oracle_user.forget_calls()
        pipeline = oracledb.create_pipeline()
        pipeline.add_execute(SIT, seat())
        pipeline.add_execute(SIT, seat())
        pipeline.add_fetchall("SELECT num FROM seats")
        pipeline.add_commit()
        results = await c.run_pipeline(pipeline, continue_on_error=True)
        assert results[1].error.full_code == "ORA-00001"
        assert results[2].rows == [(1,)]
        with pytest.raises(oracledb.IntegrityError):
            await c.run_pipeline(pipeline)
        assert await c.fetchone("SELECT 1") == (1,)
