"""Anonymous blocks of PL/SQL on the double of Oracle."""

from __future__ import annotations

import oracledb
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


SEIZE = """
DECLARE
  v_ticket seats.ticket%TYPE;
  v_done NUMBER(1) := 0;
BEGIN
  BEGIN
    SELECT ticket INTO v_ticket FROM seats WHERE kind = :kind AND num = :num FOR UPDATE;
  EXCEPTION
    WHEN NO_DATA_FOUND THEN
      BEGIN
        INSERT INTO seats (kind, num, ticket) VALUES (:kind, :num, :ticket);
        v_done := 1;
      EXCEPTION
        WHEN DUP_VAL_ON_INDEX THEN
          v_done := 0;
      END;
  END;
  IF v_done = 1 THEN
    :result := 'new';
  ELSIF v_ticket = :ticket THEN
    UPDATE seats SET since = SYS_EXTRACT_UTC(SYSTIMESTAMP)
    WHERE kind = :kind AND num = :num;
    :result := 'again ' || SQL%ROWCOUNT;
  ELSE
    :result := 'taken';
  END IF;
  :held_by := NVL(v_ticket, '');
  COMMIT;
END;
"""


async def test_one_round_trip(user: OracleUser) -> None:
    async with (
        with_tables(user, autocommit=False) as c,
        session(user) as other,
    ):
        user.forget_calls()
        results = []
        for ticket in ("a", "a", "b"):
            values = seat(ticket=ticket)
            results.append(await run(c, SEIZE, values, result=str, held_by=str))
            assert not c.transaction_in_progress
        assert len(user.calls()) == 3
        assert results == [
            {"result": "new", "held_by": None},
            {"result": "again 1", "held_by": "a"},
            {"result": "taken", "held_by": "a"},
        ]
        assert await number(other, "SELECT COUNT(*) FROM seats") == 1


async def test_without_commit_the_transaction_stays_open(user: OracleUser) -> None:
    block = "BEGIN DELETE FROM seats; :n := SQL%ROWCOUNT; END;"
    async with with_tables(user) as c:
        await c.executemany(SIT, [seat(1), seat(2)])
        c.autocommit = False
        assert await run(c, block, {}, n=int) == {"n": 2}
        assert c.transaction_in_progress
        await c.rollback()
        assert await number(c, "SELECT COUNT(*) FROM seats") == 2


async def test_rollback_as_the_last_statement(user: OracleUser) -> None:
    async with with_tables(user, autocommit=False) as c:
        await c.execute(SIT, seat())
        await c.execute("BEGIN DELETE FROM seats; ROLLBACK; END;")
        assert not c.transaction_in_progress
        assert await number(c, "SELECT COUNT(*) FROM seats") == 0


async def test_a_bind_that_goes_in_and_out(user: OracleUser) -> None:
    async with session(user) as c:
        cursor = c.cursor()
        both = cursor.var(int)
        both.setvalue(0, 20)
        for expected in (42, 86):
            await cursor.execute("BEGIN :n := :n * 2 + 2; END;", n=both)
            assert both.getvalue() == expected


async def test_variables_only_written_start_empty(user: OracleUser) -> None:
    block = "BEGIN IF :go = 1 THEN :out := 'said'; END IF; END;"
    async with session(user) as c:
        cursor = c.cursor()
        out = cursor.var(str)
        for go, said in ((1, "said"), (0, None)):
            await cursor.execute(block, go=go, out=out)
            assert out.getvalue() == said


async def test_one_block_for_many_rows(user: OracleUser) -> None:
    async with with_tables(user) as c:
        for n in range(0, 100, 3):
            await c.execute(SIT, seat(n, "other"))
        cursor = c.cursor()
        result = cursor.var(str, arraysize=100)
        held_by = cursor.var(str, 32767, arraysize=100)
        cursor.setinputsizes(result=result, held_by=held_by)
        for trips in (2, 1):  # the driver learns the directions from the first row
            user.forget_calls()
            await cursor.executemany(SEIZE, [seat(n, "mine") for n in range(100)])
            assert len(user.calls()) <= trips
        assert [held_by.getvalue(n) for n in range(100)] == [
            "mine" if n % 3 else "other" for n in range(100)
        ]
        assert result.getvalue(99) == "taken"
        assert result.getvalue(98) == "again 1"


async def test_long_texts_in_and_out(user: OracleUser) -> None:
    block = """
    DECLARE
      v_doc VARCHAR2(32767);
      n_doc CLOB := :doc;
    BEGIN
      INSERT INTO notes (num, doc) VALUES (1, n_doc);
      SELECT doc INTO v_doc FROM notes WHERE num = 1;
      UPDATE notes SET doc = :doc WHERE num = 1;
      :back := v_doc;
      COMMIT;
    END;"""
    long = '{"a":"' + "x" * 32750 + '"}'
    async with with_tables(user) as c:
        with c.cursor() as cursor:
            back = cursor.var(oracledb.DB_TYPE_VARCHAR, 32767)
            await cursor.execute(block, doc=long, back=back)
            assert back.getvalue() == long
            short = cursor.var(oracledb.DB_TYPE_VARCHAR, 100)
            with refused(6502):
                await cursor.execute(
                    block.replace("INSERT", "-- INSERT"), [long, short]
                )


async def test_returning_into(user: OracleUser) -> None:
    block = """
    DECLARE v_num seats.num%TYPE;
    BEGIN
      UPDATE seats SET num = num + 1 WHERE ticket = :ticket RETURNING num INTO v_num;
      :num := v_num;
      DELETE FROM seats WHERE num = v_num RETURNING ticket INTO :was;
    END;"""
    async with with_tables(user) as c:
        await c.execute(SIT, seat(5))
        results = await run(c, block, {"ticket": "t"}, num=int, was=str)
        assert results == {"num": 6, "was": "t"}


async def test_microseconds_since_1970(user: OracleUser) -> None:
    block = """
    DECLARE
      v_age INTERVAL DAY({digits}) TO SECOND(6);
    BEGIN
      v_age := SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00';
      :us := EXTRACT(DAY FROM v_age) * 86400000000
        + EXTRACT(HOUR FROM v_age) * 3600000000
        + EXTRACT(MINUTE FROM v_age) * 60000000
        + EXTRACT(SECOND FROM v_age) * 1000000;
      :text := TO_CHAR(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'YYYY-MM-DD"T"HH24:MI:SS.FF6');
    END;"""
    async with session(user) as c:
        nine = block.replace("{digits}", "9")
        first = await run(c, nine, {}, us=int, text=str)
        second = await run(c, nine, {}, us=int, text=str)
        assert 1.7e15 < first["us"] < second["us"] < 5e15
        assert first["text"] < second["text"]
        assert len(first["text"]) == 26
        with refused(1873):
            await run(c, block.replace("{digits}", "2"), {}, us=int, text=str)


# ----------------- Errors in anonymous blocks of PL/SQL on the double of Oracle


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
