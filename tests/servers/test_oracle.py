"""The unmodified driver's statements, at every release the double speaks for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import oracledb
import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle_sessions import (
    SIT,
    STAND_UP,
    blocked,
    number,
    refused,
    seat,
    session,
    with_tables,
)

pytestmark = pytest.mark.asyncio


THEN = datetime(2030, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - Oracle's has no zone


async def test_a_session_knows_the_release(user: OracleUser) -> None:
    async with session(user) as c:
        assert ".".join(c.version.split(".")[:2]) == {
            "12.1": "12.1",
            "12.2": "12.2",
            "19c": "19.3",
            "23ai": "23.4",
        }.get(user.profile)
        version = await c.fetchone("SELECT version FROM product_component_version")
        assert version == (c.version,)


async def test_rows_keep_their_types(user: OracleUser) -> None:
    async with with_tables(user) as c:
        cursor = c.cursor()
        cursor.setinputsizes(since=oracledb.DB_TYPE_TIMESTAMP)
        insert = SIT.replace("ticket)", "ticket, since)", 1).replace(
            ":ticket", ":ticket, :since"
        )
        await cursor.execute(insert, {**seat(2**31, "x" * 64, "ünï"), "since": THEN})
        await cursor.execute("SELECT kind, num, ticket, since FROM seats")
        assert [(d[0], d[1].name) for d in cursor.description or ()] == [
            ("KIND", "DB_TYPE_VARCHAR"),
            ("NUM", "DB_TYPE_NUMBER"),
            ("TICKET", "DB_TYPE_VARCHAR"),
            ("SINCE", "DB_TYPE_TIMESTAMP"),
        ]
        assert await cursor.fetchall() == [("ünï", 2**31, "x" * 64, THEN)]


async def test_a_bound_datetime_loses_its_microseconds(user: OracleUser) -> None:
    # The driver binds it as DATE unless another type is given.
    async with session(user) as c:
        row = await c.fetchone("SELECT :at FROM dual", {"at": THEN})
        assert row == (THEN.replace(microsecond=0),)


async def test_numbers_come_back_as_they_went(user: OracleUser) -> None:
    async with session(user) as c:
        for value in (0, 1, -1, 99, 100, -100, 2**62, -(2**62), 0.5, -1234.0625):
            row = await c.fetchone("SELECT :n + 0 FROM dual", {"n": value})
            assert row == (value,), value
        assert await c.fetchone("SELECT 1/2, 7/4 FROM dual") == (0.5, 1.75)


async def test_rowcounts(user: OracleUser) -> None:
    async with with_tables(user) as c:
        cursor = c.cursor()
        await cursor.execute(SIT, seat())
        assert cursor.rowcount == 1
        await cursor.execute(STAND_UP, seat(ticket="other"))
        assert cursor.rowcount == 0
        await cursor.execute(STAND_UP, seat())
        assert cursor.rowcount == 1


async def test_many_rows_in_few_trips(user: OracleUser) -> None:
    async with with_tables(user) as c:
        user.forget_calls()
        await c.executemany(SIT, [seat(n) for n in range(1000)])
        assert len(user.calls()) == 1
        cursor = c.cursor()
        cursor.arraysize, cursor.prefetchrows = 300, 100
        await cursor.execute("SELECT num FROM seats ORDER BY num")
        assert await cursor.fetchall() == [(n,) for n in range(1000)]
        assert len(user.calls()) == 1 + 4


async def test_a_statement_again_and_again(user: OracleUser) -> None:
    async with with_tables(user) as c:
        cursor = c.cursor()
        for n in range(20):
            await cursor.execute(SIT, seat(n))
            query = "SELECT ticket FROM seats WHERE num = :num"
            assert await c.fetchall(query, {"num": n}) == [("t",)]
        positional = "SELECT num FROM seats WHERE num > :1 AND num < :2 ORDER BY num"
        assert await c.fetchall(positional, [4, 7]) == [(5,), (6,)]


async def test_the_empty_text_is_null(user: OracleUser) -> None:
    async with with_tables(user) as c:
        await c.execute("INSERT INTO notes (num, state) VALUES (1, :s)", {"s": ""})
        query = "SELECT num, '', 'a' || NULL FROM notes WHERE state IS NULL"
        assert await c.fetchone(query) == (1, None, "a")
        same = await c.fetchall("SELECT num FROM notes WHERE state = ''")
        assert same == []
        assert await c.fetchone("SELECT LENGTH(''), SUBSTR('a', 2) FROM dual") == (
            *(None, None),
        )
        with refused(1400):
            await c.execute(SIT, seat(ticket=""))


async def test_char_keeps_its_blanks(user: OracleUser) -> None:
    async with session(user) as c:
        await c.execute("CREATE TABLE chars (k CHAR(4), v VARCHAR2(4))")
        await c.execute("INSERT INTO chars VALUES ('ab', 'ab')")
        assert await number(c, "SELECT COUNT(*) FROM chars WHERE k = 'ab'") == 1
        bound = "SELECT COUNT(*) FROM chars WHERE k = :k"
        assert await c.fetchone(bound, {"k": "ab"}) == (0,)
        assert await c.fetchone(bound, {"k": "ab  "}) == (1,)
        assert await number(c, "SELECT COUNT(*) FROM chars WHERE k = v") == 0
        await c.execute("ALTER TABLE chars MODIFY (k VARCHAR2(8 CHAR))")
        assert await c.fetchone("SELECT k FROM chars") == ("ab  ",)


async def test_long_texts(user: OracleUser) -> None:
    async with with_tables(user) as c:
        long = '{"a":["' + "ü" * 15000 + '"]}'
        await c.execute("INSERT INTO notes (num, doc) VALUES (1, :d)", {"d": long})
        assert await c.fetchone("SELECT doc FROM notes") == (long,)
        with refused(1461):
            await c.execute("SELECT 1 FROM dual WHERE :d = 'a'", {"d": long})
        with refused(2290):
            await c.execute("INSERT INTO notes (num, doc) VALUES (2, 'no JSON')")
        with refused(12899):
            await c.execute(SIT, seat(ticket="x" * 65))


async def test_returning(user: OracleUser) -> None:
    async with with_tables(user) as c:
        await c.execute(SIT, seat())
        cursor = c.cursor()
        num, since = cursor.var(int), cursor.var(oracledb.DB_TYPE_TIMESTAMP)
        update = (
            "UPDATE seats SET num = num + 1 WHERE ticket = :t "
            "RETURNING num, since INTO :num, :since"
        )
        await cursor.execute(update, t="t", num=num, since=since)
        assert num.getvalue() == [2]
        assert isinstance(since.getvalue()[0], datetime)
        await cursor.execute(update, t="nobody", num=num, since=since)
        assert num.getvalue() == []


async def test_the_server_s_clock(user: OracleUser) -> None:
    async with session(user) as c:
        row = await c.fetchone(
            "SELECT SYS_EXTRACT_UTC(SYSTIMESTAMP), SYS_EXTRACT_UTC(SYSTIMESTAMP)"
            " + NUMTODSINTERVAL(:s, 'SECOND') FROM dual",
            {"s": 30.5},
        )
        assert row is not None
        now = datetime.now(UTC).replace(tzinfo=None)
        assert abs(row[0] - now) < timedelta(seconds=5)
        assert timedelta(0) <= row[1] - row[0] - timedelta(seconds=30.5) < timedelta(1)


async def test_merge(user: OracleUser) -> None:
    async with with_tables(user) as c:
        merge = """MERGE INTO notes n USING (SELECT :num AS num FROM dual) s
            ON (n.num = s.num)
            WHEN MATCHED THEN UPDATE SET n.flag = n.flag + 1
            WHEN NOT MATCHED THEN INSERT (num, flag) VALUES (s.num, 1)"""
        cursor = c.cursor()
        for flag in (1, 2):
            await cursor.execute(merge, num=7)
            assert cursor.rowcount == 1
            assert await c.fetchone("SELECT flag FROM notes") == (flag,)


async def test_a_statement_is_parsed_and_not_executed(user: OracleUser) -> None:
    async with with_tables(user) as c:
        with c.cursor() as cursor:
            await cursor.parse(SIT)
            await cursor.parse("BEGIN DELETE FROM seats; COMMIT; END;")
            await cursor.parse("SELECT num FROM seats")
            assert [d[0] for d in cursor.description or ()] == ["NUM"]
            assert await number(c, "SELECT COUNT(*) FROM seats") == 0
            with refused(942):
                await cursor.parse("DELETE FROM nowhere")
            with refused(6550, "PL/SQL: ORA-00942"):
                await cursor.parse("BEGIN DELETE FROM nowhere; END;")


async def test_a_session_tells_about_itself(user: OracleUser) -> None:
    async with session(user) as c:
        await c.ping()
        c.module, c.action, c.client_identifier = "m", "a", "i"
        assert await c.fetchone("SELECT 1 FROM dual") == (1,)
        assert await c.fetchone("SELECT USER FROM dual") == (user.name.upper(),)


async def test_the_dictionary(user: OracleUser) -> None:
    async with with_tables(user) as c:
        rows = await c.fetchall(
            "SELECT column_name, data_type, char_length, nullable FROM user_tab_columns"
            " WHERE table_name = 'NOTES' ORDER BY column_id"
        )
        assert rows == [
            ("NUM", "NUMBER", 0, "N"),
            ("FLAG", "NUMBER", 0, "N"),
            ("STATE", "VARCHAR2", 400, "Y"),
            ("DOC", "CLOB", 0, "Y"),
        ]
        rows = await c.fetchall(
            "SELECT k.constraint_type, c.column_name FROM user_constraints k"
            " JOIN user_cons_columns c ON c.constraint_name = k.constraint_name"
            " WHERE k.table_name = 'SEATS' ORDER BY c.position"
        )
        assert rows == [("P", "KIND"), ("P", "NUM")]


async def test_a_page_by_key(user: OracleUser) -> None:
    async with with_tables(user) as c:
        await c.executemany(SIT, [seat(n) for n in range(5)])
        page = (
            "SELECT num FROM seats WHERE num > :num ORDER BY num "
            "FETCH FIRST 2 ROWS ONLY"
        )
        assert await c.fetchall(page, {"num": -1}) == [(0,), (1,)]
        assert await c.fetchall(page, {"num": 1}) == [(2,), (3,)]


def blocking_program(user: OracleUser) -> None:
    with oracledb.connect(**user.login) as c:
        c.autocommit = True
        with c.cursor() as cursor:
            cursor.execute("CREATE TABLE plain (a NUMBER PRIMARY KEY)")
            cursor.execute("INSERT INTO plain VALUES (:a)", a=5)
            with pytest.raises(oracledb.IntegrityError):
                cursor.execute("INSERT INTO plain VALUES (:a)", a=5)
            assert cursor.execute("SELECT a FROM plain").fetchall() == [(5,)]


async def test_a_program_without_a_loop(user: OracleUser) -> None:
    await asyncio.to_thread(blocking_program, user)


# ----- Transactions and locks of the double of Oracle, as the driver meets them


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
