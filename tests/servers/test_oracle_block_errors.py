"""Errors in anonymous blocks of PL/SQL on the double of Oracle."""

from __future__ import annotations

import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle_sessions import (
    SIT,
    number,
    refused,
    run,
    seat,
    session,
    with_tables,
)

pytestmark = pytest.mark.asyncio


async def test_a_row_that_fails_ends_the_others(user: OracleUser) -> None:
    block = """
    BEGIN INSERT INTO seats (kind, num, ticket) VALUES ('k', :num, 't'); COMMIT; END;"""
    async with with_tables(user) as c:
        with refused(1):
            await c.executemany(block, [{"num": n} for n in (1, 2, 2, 3)])
        assert await c.fetchall("SELECT num FROM seats ORDER BY num") == [(1,), (2,)]


async def test_a_long_text_in_an_expression_of_sql(user: OracleUser) -> None:
    block = """
    DECLARE v_long VARCHAR2(32767) := RPAD('x', :size, 'x'); v_n NUMBER;
    BEGIN SELECT COUNT(*) INTO v_n FROM notes WHERE state = v_long; :n := v_n; END;"""
    async with with_tables(user) as c:
        assert await run(c, block, {"size": 4000}, n=int) == {"n": 0}
        with refused(1461):
            await run(c, block, {"size": 4001}, n=int)


async def test_a_variable_that_is_too_short(user: OracleUser) -> None:
    async with session(user) as c:
        with refused(6502):
            await c.execute("DECLARE v VARCHAR2(3); BEGIN v := 'abcd'; END;")
        caught = """
        DECLARE v VARCHAR2(3);
        BEGIN v := 'abcd'; EXCEPTION WHEN VALUE_ERROR THEN :said := 'long'; END;"""
        assert await run(c, caught, {}, said=str) == {"said": "long"}


async def test_errors_of_its_own(user: OracleUser) -> None:
    async with session(user) as c:
        with refused(20001, "no more"):
            await c.execute("BEGIN raise_application_error(-20001, 'no more'); END;")
        with refused(21000):
            await c.execute("BEGIN raise_application_error(-20, 'no more'); END;")
        numbered = """
        BEGIN raise_application_error(-20007, 'x');
        EXCEPTION WHEN OTHERS THEN :code := SQLCODE; END;"""
        assert await run(c, numbered, {}, code=int) == {"code": -20007}


async def test_errors_by_number(user: OracleUser) -> None:
    block = """
    DECLARE
      busy EXCEPTION;
      PRAGMA EXCEPTION_INIT(busy, -54);
      v_num NUMBER;
    BEGIN
      SELECT num INTO v_num FROM seats WHERE num = 1 FOR UPDATE NOWAIT;
      :said := 'free';
    EXCEPTION
      WHEN busy THEN :said := 'busy';
    END;"""
    async with with_tables(user) as c, session(user, autocommit=False) as other:
        await c.execute(SIT, seat())
        assert await run(c, block, {}, said=str) == {"said": "free"}
        await other.fetchall("SELECT num FROM seats FOR UPDATE")
        assert await run(c, block, {}, said=str) == {"said": "busy"}
        with refused(54):
            await c.execute(block.replace("WHEN busy", "WHEN ZERO_DIVIDE"), [""])


async def test_a_wait_with_an_end(user: OracleUser) -> None:
    block = """
    DECLARE v_num NUMBER;
    BEGIN SELECT num INTO v_num FROM seats WHERE num = 1 FOR UPDATE WAIT 1; END;"""
    async with with_tables(user) as c, session(user, autocommit=False) as other:
        await c.execute(SIT, seat())
        await c.execute(block)
        await other.fetchall("SELECT num FROM seats FOR UPDATE")
        with refused(30006):
            await c.execute(block)


async def test_rows_there_are_none_or_too_many_of(user: OracleUser) -> None:
    block = """
    DECLARE v_num NUMBER;
    BEGIN SELECT num INTO v_num FROM seats; :num := v_num; END;"""
    async with with_tables(user) as c:
        with refused(1403):
            await run(c, block, {}, num=int)
        await c.execute(SIT, seat(5))
        assert await run(c, block, {}, num=int) == {"num": 5}
        await c.execute(SIT, seat(6))
        with refused(1422):
            await run(c, block, {}, num=int)


async def test_errors_found_when_a_block_is_compiled(user: OracleUser) -> None:
    async with with_tables(user) as c:
        await c.execute(SIT, seat())
        for code, statement in {
            942: "DELETE FROM nowhere",
            904: "UPDATE seats SET num = now()",
            933: "UPDATE seats SET num = 1 LIMIT 1",
        }.items():
            # Found though it would never be reached.
            block = "BEGIN DELETE FROM seats; IF 1 = 0 THEN …; END IF; END;"
            with refused(6550, f"PL/SQL: ORA-{code:05}"):
                await c.execute(block.replace("…", statement))
        assert await number(c, "SELECT COUNT(*) FROM seats") == 1


async def test_an_unhandled_error_undoes_the_block(user: OracleUser) -> None:
    block = """
    BEGIN
      UPDATE seats SET ticket = 'x';
      INSERT INTO seats (kind, num, ticket) VALUES ('k', 1, 'y');
      COMMIT;
    END;"""
    async with with_tables(user, autocommit=False) as c:
        await c.execute(SIT, seat())
        with refused(1):
            await c.execute(block)
        assert c.transaction_in_progress
        assert await c.fetchall("SELECT ticket FROM seats") == [("t",)]
