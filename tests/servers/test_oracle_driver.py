"""What the unmodified driver does when calls are broken into or never answered."""

from __future__ import annotations

import asyncio
import time

import oracledb
import pytest

from tests.servers.oracle.client import OracleDouble, OracleUser
from tests.servers.oracle.faults import Hole, When
from tests.servers.oracle_sessions import (
    COUNT,
    SIT,
    blocked,
    code_of,
    number,
    refused,
    seat,
    session,
    soon,
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


# --- What the double makes go wrong, and what the unmodified driver makes of it


async def test_latency_and_counted_round_trips(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c:
        user.forget_calls()
        user.latency(0.05)
        began = time.perf_counter()
        await c.execute(SIT, seat())
        await c.commit()
        assert time.perf_counter() - began >= 0.1
        calls = user.calls()
        assert [call.statement for call in calls] == [SIT, ""]
        assert {call.session for call in calls} == set(user.sessions())


async def test_faults_of_one_user_are_nobody_else_s(
    user: OracleUser, oracle_double: OracleDouble
) -> None:
    with oracle_double.user(f"{user.name}_b") as other:
        user.rule("before", "error", "dual", code=1234, times=0)
        async with session(user) as c, session(other) as fine:
            assert await fine.fetchone("SELECT 1 FROM dual") == (1,)
            with refused(1234):
                await c.execute("SELECT 1 FROM dual")
            user.well()
            assert await c.fetchone("SELECT 1 FROM dual") == (1,)


@pytest.mark.parametrize(("when", "rows"), [("before", 0), ("after", 1)])
async def test_a_lost_connection(user: OracleUser, when: When, rows: int) -> None:
    async with with_tables(user) as c, session(user) as other:
        user.rule(when, "drop", "INSERT")
        with pytest.raises(oracledb.DatabaseError) as caught:
            await c.execute(SIT, seat())
        assert code_of(caught.value) == "DPY-4011"
        assert caught.value.args[0].isrecoverable
        assert await number(other, COUNT) == rows


async def test_a_reply_that_is_an_error_though_all_is_done(user: OracleUser) -> None:
    async with with_tables(user) as c:
        user.rule("after", "error", "INSERT", code=1013)
        with refused(1013):
            await c.execute(SIT, seat())
        assert await number(c, COUNT) == 1


@pytest.mark.parametrize("while_it_runs", [False, True])
async def test_a_killed_session(user: OracleUser, while_it_runs: bool) -> None:
    async with (
        with_tables(user) as c,
        session(user, autocommit=False) as holder,
        session(user) as other,
    ):
        await holder.execute(SIT, seat())
        (of_other,) = set(user.sessions()) - set(user.sessions()[:2])
        if while_it_runs:
            runs = asyncio.create_task(other.execute(SIT, seat(ticket="o")))
            await blocked(user)
            assert user.waiting() == [of_other]
            assert user.kill(of_other) == 1
        else:
            assert user.kill(of_other) == 1
            runs = asyncio.create_task(other.execute(SIT, seat(ticket="o")))
        with refused(28):
            await runs
        assert not other.is_healthy()
        await holder.rollback()
        assert await number(c, COUNT) == 0


async def test_a_server_process_that_died(user: OracleUser) -> None:
    async with with_tables(user) as c:
        user.end()
        with refused(3113):
            await c.execute(SIT, seat())
        assert not c.is_healthy()


async def test_connections_closed_without_a_word(user: OracleUser) -> None:
    async with session(user) as c:
        assert user.drop() == 1
        with pytest.raises(oracledb.DatabaseError) as caught:
            await c.execute("SELECT 1 FROM dual")
        assert code_of(caught.value) in {"DPY-4011", "DPY-1001"}
        await soon(lambda: not user.sessions(), "the session is gone")


async def test_errors_announced_by_a_mark(user: OracleUser) -> None:
    user.late_errors()
    async with with_tables(user) as c:
        await c.execute(SIT, seat())
        for _ in range(3):
            with refused(1):
                await c.execute(SIT, seat())
        assert await number(c, COUNT) == 1


async def test_errors_of_a_connection_with_a_hole(user: OracleUser) -> None:
    async with with_tables(user) as c:
        user.hole("out")
        task = asyncio.create_task(c.execute(SIT, seat()))
        await soon(lambda: any(x.statement == SIT for x in user.calls()), "executed")
        assert not task.done()
        user.hole("")
        await task
        assert await number(c, COUNT) == 1


async def test_logins_refused(user: OracleUser) -> None:
    with refused(1017):
        await oracledb.connect_async(**{**user.login, "password": "wrong"})
    with refused(1017):
        await oracledb.connect_async(**{**user.login, "user": "nobody"})
    nowhere = user.dsn.replace(user.service, "NOWHERE")
    with pytest.raises(oracledb.OperationalError, match="DPY-6001") as caught:
        await oracledb.connect_async(**{**user.login, "dsn": nowhere})
    assert code_of(caught.value) == "DPY-6005"
    for code in (28000, 28001):
        user.account(code)
        with refused(code):
            await oracledb.connect_async(**user.login)
    user.account(0)
    async with session(user):
        pass


async def test_a_server_the_driver_finds_too_old(oracle_user: OracleUser) -> None:
    with pytest.raises(oracledb.OperationalError, match="DPY-3010") as caught:
        await oracledb.connect_async(**oracle_user.at("11.2").login)
    assert code_of(caught.value) == "DPY-6005"


async def test_rights(user: OracleUser, oracle_double: OracleDouble) -> None:
    with oracle_double.user(f"{user.name}_b") as guest:
        at = f"{user.name}.seats"
        insert = SIT.replace("seats", at)
        block = "BEGIN …; END;".replace("…", insert)
        async with with_tables(user) as c, session(guest.at(user.profile)) as g:
            with refused(942):
                await g.execute(insert, seat())
            with refused(6550, "PL/SQL: ORA-00942"):
                await g.execute(block, seat())
            await c.execute(f"GRANT SELECT ON seats TO {guest.name}")
            with refused(1031):
                await g.execute(insert, seat())
            with refused(6550, "PL/SQL: ORA-01031"):
                await g.execute(block, seat())
            assert await number(g, COUNT.replace("seats", at)) == 0
            await c.execute(f"GRANT INSERT ON seats TO {guest.name}")
            await g.execute(insert, seat(1))
            await g.execute(block, seat(2))
            with refused(1031):
                await g.execute("DELETE FROM seats".replace("seats", at))
            await g.execute(f"ALTER SESSION SET CURRENT_SCHEMA = {user.name}")
            assert await number(g, COUNT) == 2
