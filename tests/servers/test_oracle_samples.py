"""What the driver's own samples show, as far as it is what the double is for.

Each test is named after the sample of python-oracledb it is about, and does in our own
words what that does (``call_timeout``: in ``test_oracle_driver``). What other samples
need is refused, and never half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from typing import Any

import oracledb
import pytest
import pytest_asyncio

from tests.servers.oracle.client import OracleUser
from tests.servers.oracle_sessions import code_of, number, refused, session

pytestmark = pytest.mark.asyncio

CHILDREN = """CREATE TABLE children (
    id NUMBER(9) NOT NULL, parent NUMBER(9) NOT NULL, name VARCHAR2(60) NOT NULL,
    CONSTRAINT children_pk PRIMARY KEY (id))"""
INSERT = "INSERT INTO children (id, parent, name) VALUES (:1, :2, :3)"
QUERY = "SELECT id, name FROM children WHERE parent = :parent ORDER BY id"
COUNT = "SELECT COUNT(*) FROM children"
ROWS = [(n, 10 * (n % 5), f"Child {n}") for n in range(1, 31)]
OF_TEN = [(n, f"Child {n}") for n in (1, 6, 11, 16, 21, 26)]

Connection = oracledb.AsyncConnection


@pytest.fixture(params=["12.2", "19c", "23ai"])
def user(request: pytest.FixtureRequest, oracle_user: OracleUser) -> OracleUser:
    return oracle_user.at(request.param)


@pytest_asyncio.fixture
async def c(user: OracleUser) -> AsyncIterator[Connection]:
    """A session, and thirty children of five parents."""
    async with session(user, autocommit=False) as connection:
        await connection.execute(CHILDREN)
        await connection.executemany(INSERT, ROWS)
        await connection.commit()
        yield connection


async def test_connection_pool(user: OracleUser) -> None:
    begun: list[Any] = []

    async def begin(connection: Connection, tag: str | None) -> None:
        await connection.execute("ALTER SESSION SET NLS_DATE_FORMAT = 'YYYY-MM-DD'")
        begun.append(tag)

    pool = oracledb.create_pool_async(
        **user.login, min=1, max=2, increment=1, session_callback=begin
    )

    async def answer(n: int) -> object:
        async with pool.acquire() as connection:
            return await connection.fetchone("SELECT :n * 2 FROM dual", {"n": n})

    answers = await asyncio.gather(*(answer(n) for n in range(10)))
    assert answers == [(2 * n,) for n in range(10)]
    assert 1 <= len(begun) == pool.opened <= 2
    assert pool.busy == 0
    await pool.close()
    with pytest.raises(oracledb.InterfaceError):
        await answer(1)


async def test_query(c: Connection) -> None:
    with c.cursor() as cursor:
        await cursor.execute(QUERY, parent=10)
        assert await cursor.fetchone() == OF_TEN[0]
        assert await cursor.fetchmany(2) == OF_TEN[1:3]
        assert await cursor.fetchall() == OF_TEN[3:]
        assert await cursor.fetchone() is None
        await cursor.execute(QUERY, parent=10)
        assert [row async for row in cursor] == OF_TEN
    paged = "SELECT id FROM children ORDER BY id OFFSET 20 ROWS FETCH NEXT 3 ROWS ONLY"
    assert await c.fetchall(paged) == [(21,), (22,), (23,)]


async def test_query_arraysize(user: OracleUser, c: Connection) -> None:
    with c.cursor() as cursor:
        cursor.prefetchrows = cursor.arraysize = 10
        user.forget_calls()
        await cursor.execute("SELECT id FROM children ORDER BY id")
        assert await cursor.fetchall() == [(row[0],) for row in ROWS]
        assert len(user.calls()) in {3, 4}  # the last may tell that it is the last


async def test_bind_query(c: Connection) -> None:
    by_place = "SELECT name FROM children WHERE parent = :1 AND id > :2 ORDER BY id"
    assert await c.fetchall(by_place, [10, 20]) == [("Child 21",), ("Child 26",)]
    names = ", ".join(f":{n}" for n in range(1, 4))
    several = f"SELECT COUNT(*) FROM children WHERE id IN ({names})"  # noqa: S608
    assert await c.fetchone(several, [1, 2, 99]) == (2,)
    with c.cursor() as cursor:
        cursor.prepare(QUERY)
        assert cursor.bindnames() == ["PARENT"]
        for parent in (0, 10):
            await cursor.execute(None, parent=parent)
            assert len(await cursor.fetchall()) == 6


async def test_bind_insert(c: Connection) -> None:
    with c.cursor() as cursor:
        await cursor.executemany(INSERT, [(31, 90, "a"), (32, 90, "bb" * 20)])
        assert cursor.rowcount == 2
        named = "INSERT INTO children (id, parent, name) VALUES (:id, :p, :name)"
        await cursor.execute(named, {"id": 33, "p": 90, "name": "ñ"})
        made = cursor.var(int)
        returning = f"{named} RETURNING id INTO :made"
        await cursor.execute(returning, id=34, p=90, name="d", made=made)
        assert made.getvalue() == [34]
        assert await number(c, COUNT) == 34
        await c.rollback()
        assert await number(c, COUNT) == 30


async def test_one_bad_row_of_many(c: Connection) -> None:
    """Those before it stand until the transaction is rolled back."""
    with pytest.raises(oracledb.IntegrityError) as caught, c.cursor() as cursor:
        await cursor.executemany(INSERT, [(40, 1, "a"), (1, 1, "is there")])
    assert code_of(caught.value) == "ORA-00001"
    await c.rollback()
    assert await number(c, COUNT) == 30


async def test_dml_returning_multiple_rows(c: Connection) -> None:
    with c.cursor() as cursor:
        ids, names = (cursor.var(kind, arraysize=3) for kind in (int, str))
        cursor.setinputsizes(None, ids, names)
        delete = "DELETE FROM children WHERE parent = :1 RETURNING id, name INTO :2, :3"
        await cursor.executemany(delete, [(10,), (20,), (99,)])
        assert list(zip(ids.getvalue(0), names.getvalue(0), strict=True)) == OF_TEN
        assert ids.getvalue(1) == [2, 7, 12, 17, 22, 27]
        assert (ids.getvalue(2), names.getvalue(2)) == ([], [])
        assert cursor.rowcount == 12


async def test_generic_row_factory(c: Connection) -> None:
    with c.cursor() as cursor:
        await cursor.execute(QUERY, parent=10)
        names = [column.name for column in cursor.description or ()]
        cursor.rowfactory = lambda *row: dict(zip(names, row, strict=True))
        assert await cursor.fetchone() == {"ID": 1, "NAME": "Child 1"}


async def test_type_handlers(c: Connection) -> None:
    def decimals(cursor: Any, metadata: Any) -> Any:  # noqa: ANN401 - the driver's
        if metadata.type_code is oracledb.DB_TYPE_NUMBER:
            return cursor.var(Decimal, arraysize=cursor.arraysize)
        return None

    def raw(cursor: Any, metadata: Any) -> Any:  # noqa: ANN401 - the driver's
        if metadata.type_code is oracledb.DB_TYPE_VARCHAR:
            return cursor.var(str, arraysize=cursor.arraysize, bypass_decode=True)
        return None

    def texts(cursor: Any, value: object, arraysize: int) -> Any:  # noqa: ANN401
        if isinstance(value, range):
            return cursor.var(str, arraysize=arraysize, inconverter=str)
        return None

    c.outputtypehandler = decimals
    assert repr(await c.fetchone("SELECT 0.1 FROM dual")) == "(Decimal('0.1'),)"
    c.outputtypehandler = raw
    assert await c.fetchone("SELECT name FROM children WHERE id = 1") == (b"Child 1",)
    c.inputtypehandler = texts
    assert await c.fetchone("SELECT :1 FROM dual", [range(3)]) == (b"range(0, 3)",)


async def test_plsql_with_binds(c: Connection) -> None:
    with c.cursor() as cursor:
        doubled, both = cursor.var(int), cursor.var(int)
        both.setvalue(0, 5)
        block = "BEGIN :doubled := :n * 2; :both := :both + :n; END;"
        await cursor.execute(block, n=4, doubled=doubled, both=both)
        assert (doubled.getvalue(), both.getvalue()) == (8, 9)


async def test_plsql_batch(user: OracleUser, c: Connection) -> None:
    block = """DECLARE v NUMBER; BEGIN
        SELECT COUNT(*) INTO v FROM children WHERE parent = :parent;
        :found := v;
    END;"""
    with c.cursor() as cursor:
        found = cursor.var(int, arraysize=3)
        cursor.setinputsizes(parent=int, found=found)
        user.forget_calls()
        await cursor.executemany(block, [{"parent": n} for n in (0, 10, 99)])
        assert [found.getvalue(n) for n in range(3)] == [6, 6, 0]
        assert len(user.calls()) <= 2  # the first tells which binds are OUT


async def test_pipelining(c: Connection) -> None:
    """One round trip from 23ai on; before, the driver sends one after the other."""
    pipeline = oracledb.create_pipeline()
    pipeline.add_fetchone("SELECT 1 FROM nowhere")
    pipeline.add_fetchall(QUERY, {"parent": 10})
    pipeline.add_execute(INSERT, (41, 1, "p"))
    pipeline.add_commit()
    results = await c.run_pipeline(pipeline, continue_on_error=True)
    assert results[0].error is not None
    assert results[0].error.full_code == "ORA-00942"
    assert results[1].rows == OF_TEN
    assert await number(c, COUNT) == 31


Tried = Callable[[Connection, oracledb.AsyncCursor], Awaitable[Any]]
BLOCK = "BEGIN :1 := NULL; END;"


def bound(kind: Any) -> Tried:  # noqa: ANN401 - one of the driver's types
    """A block that writes to a variable of that type."""
    return lambda _, cursor: cursor.execute(BLOCK, [cursor.var(kind)])


def many(**how: bool) -> Tried:
    # Another text: options do not go with a statement that the session knows.
    return lambda _, cursor: cursor.executemany(INSERT.lower(), ROWS, **how)


async def scrolled(c: Connection, _: oracledb.AsyncCursor) -> None:
    with c.cursor(scrollable=True) as cursor:
        await cursor.execute(COUNT)


IDENTITY = "CREATE TABLE t (n NUMBER GENERATED ALWAYS AS IDENTITY)"
REFUSED: dict[str, Tried] = {
    "batcherrors": many(batcherrors=True),
    "arraydmlrowcounts": many(arraydmlrowcounts=True),
    "scrollable cursors": scrolled,
    "ROWID": lambda c, _: c.execute("SELECT ROWID FROM children"),
    "ROWNUM": lambda c, _: c.execute(f"{COUNT} WHERE ROWNUM < 3"),
    "CREATE SEQUENCE": lambda c, _: c.execute("CREATE SEQUENCE numbers"),
    "IDENTITY": lambda c, _: c.execute(IDENTITY),
    "stored programs": lambda c, _: c.execute("CREATE PROCEDURE p AS BEGIN NULL; END"),
    "binds of types [102]": bound(oracledb.DB_TYPE_CURSOR),
    "binds of types [183]": bound(oracledb.DB_TYPE_INTERVAL_DS),
    "LOBs as binds": bound(oracledb.DB_TYPE_CLOB),
    "arrays as binds": lambda _, cursor: cursor.execute(
        BLOCK, [cursor.arrayvar(int, [1, 2])]
    ),
    "network function 96": lambda c, _: c.createlob(oracledb.DB_TYPE_CLOB, "a"),
    "network function 115": lambda c, _: c.changepassword("a", "b"),
    "network function 103": lambda c, _: c.tpc_begin(c.xid(1, "a", "b")),
}


async def test_unsupported_driver_features_are_refused(c: Connection) -> None:
    """By its name, and the session goes on."""
    for what, tried in REFUSED.items():
        # Closed: in `__del__` the driver waits for a lock that this thread may hold.
        with refused(3001, f"[the double: {what}"), c.cursor() as cursor:
            await tried(c, cursor)
        assert await number(c, COUNT) == 30, what
