"""What the unmodified driver does when calls are broken into or never answered."""

from __future__ import annotations

import asyncio

import oracledb
import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle.faults import Hole
from tests.servers.oracle_sessions import (
    COUNT,
    SIT,
    blocked,
    code_of,
    number,
    refused,
    seat,
    session,
    with_tables,
)

pytestmark = pytest.mark.asyncio


async def test_a_call_with_a_time_limit(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c, session(user) as other:
        await c.execute(SIT, seat())
        other.call_timeout = 300
        with pytest.raises(oracledb.DatabaseError) as caught:
            await other.execute(SIT, seat(ticket="o"))
        assert code_of(caught.value) == "DPY-4024"
        other.call_timeout = 0
        assert await other.fetchone("SELECT 5 FROM dual") == (5,)
        await c.rollback()
        assert await number(other, COUNT) == 0


async def test_a_cancelled_task(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c, session(user) as other:
        await c.execute(SIT, seat())
        task = asyncio.create_task(other.execute(SIT, seat(ticket="o")))
        await blocked(user)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await other.fetchone("SELECT 5 FROM dual") == (5,)
        await c.rollback()
        assert await number(other, COUNT) == 0


async def test_a_cancel_that_comes_after_the_commit(user: OracleUser) -> None:
    async with with_tables(user) as c, session(user) as other:
        stop = user.rule("after", "stop", "INSERT")
        task = asyncio.create_task(other.execute(SIT, seat()))
        await asyncio.to_thread(stop.reached)
        task.cancel()
        await asyncio.sleep(0)  # the driver sends its break
        stop.let_go()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await number(c, COUNT) == 1


async def test_a_call_broken_into_by_its_program(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c, session(user) as other:
        await c.execute(SIT, seat())
        task = asyncio.create_task(other.execute(SIT, seat(ticket="o")))
        await blocked(user)
        other.cancel()
        with refused(1013):
            await task
        assert await other.fetchone("SELECT 5 FROM dual") == (5,)


async def test_a_second_cancel_leaves_an_error_behind(user: OracleUser) -> None:
    # Why a connection is never used again after an interrupted call: the next call
    # gets the answer to the one before, or none; which of them is a matter of time.
    async with with_tables(user, autocommit=False) as c, session(user) as other:
        await c.execute(SIT, seat())
        task = asyncio.create_task(other.execute(SIT, seat(ticket="o")))
        await blocked(user)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        healthy = other.is_healthy()
        with pytest.raises(oracledb.DatabaseError) as caught:
            await other.fetchone("SELECT 5 FROM dual")
        assert healthy
        assert code_of(caught.value) in {"ORA-01013", "DPY-4011"}


@pytest.mark.parametrize("hole", ["in", "out"])
async def test_a_cancel_on_a_silent_server_hangs(user: OracleUser, hole: Hole) -> None:
    # Why no call of the driver's is cancelled: it would wait for the server's answer to
    # its break, whatever limits were set.
    async with with_tables(user) as c, session(user) as other:
        c.call_timeout = 400
        user.hole(hole)
        task = asyncio.create_task(c.execute(SIT, seat()))
        await asyncio.sleep(0.02)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1.2)
        assert not done
        task.cancel()
        await asyncio.wait({task})
        c.terminate()
        user.hole("")
        assert await other.fetchone("SELECT 5 FROM dual") == (5,)


async def test_a_limit_of_time_ends_a_call_on_a_silent_server(user: OracleUser) -> None:
    # It passes twice: once for the answer, once for the answer to the break. Whoever
    # waits that long, and cancels nothing, can give the connection back to its pool.
    pool = oracledb.create_pool_async(**user.login, min=1, max=1)
    c = await pool.acquire()
    c.call_timeout = 200
    user.rule("before", "silence", "dual")
    with pytest.raises(oracledb.DatabaseError) as caught:
        await c.execute("SELECT 1 FROM dual")
    assert (code_of(caught.value), c.is_healthy()) == ("DPY-4011", False)
    await pool.drop(c)
    assert pool.busy == 0
    async with pool.acquire() as c:
        assert await c.fetchone("SELECT 5 FROM dual") == (5,)
    await pool.close(force=True)


async def test_a_terminated_connection_keeps_its_place_in_a_pool(
    user: OracleUser,
) -> None:
    # Why the library drops connections from a pool and does not terminate them.
    pool = oracledb.create_pool_async(**user.login, min=1, max=1)
    c = await pool.acquire()
    c.terminate()
    assert pool.busy == 1
    with pytest.raises(oracledb.InterfaceError):
        await pool.drop(c)
    await pool.close(force=True)
