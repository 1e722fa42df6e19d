"""Sessions of the real driver with the double of Oracle, closed whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import oracledb
import pytest

from tests.servers.oracle.client import OracleUser
from tests.servers.process import until

TABLES = (
    """CREATE TABLE seats (
        kind VARCHAR2(255 CHAR) NOT NULL,
        num NUMBER(10) NOT NULL,
        ticket VARCHAR2(64 CHAR) NOT NULL,
        since TIMESTAMP(6) DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
        CONSTRAINT seats_pk PRIMARY KEY (kind, num))""",
    """CREATE TABLE notes (
        num NUMBER(10) NOT NULL, flag NUMBER(1) DEFAULT 0 NOT NULL, state VARCHAR2(400),
        doc CLOB CONSTRAINT doc_json CHECK (doc IS JSON),
        CONSTRAINT notes_pk PRIMARY KEY (num))""",
)
SIT = "INSERT INTO seats (kind, num, ticket) VALUES (:kind, :num, :ticket)"
STAND_UP = "DELETE FROM seats WHERE kind = :kind AND num = :num AND ticket = :ticket"
COUNT = "SELECT COUNT(*) FROM seats"


def seat(num: int = 1, ticket: str = "t", kind: str = "k") -> dict[str, Any]:
    return {"kind": kind, "num": num, "ticket": ticket}


@asynccontextmanager
async def session(
    user: OracleUser, *, autocommit: bool = True
) -> AsyncIterator[oracledb.AsyncConnection]:
    connection = await oracledb.connect_async(**user.login)
    connection.autocommit = autocommit
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def with_tables(
    user: OracleUser, *, autocommit: bool = True
) -> AsyncIterator[oracledb.AsyncConnection]:
    """A session, and the tables made."""
    async with session(user, autocommit=autocommit) as connection:
        for table in TABLES:
            await connection.execute(table)
        yield connection


@contextmanager
def refused(code: int, text: str = "") -> Iterator[None]:
    """What is inside fails with that error of Oracle's."""
    with pytest.raises(oracledb.DatabaseError) as caught:
        yield
    error = caught.value
    assert error.args[0].code == code, error
    assert text in str(error), error


async def soon(condition: Callable[[], bool], what: str) -> None:
    """``until``, while the loop goes on."""
    await asyncio.to_thread(until, condition, what)


async def blocked(user: OracleUser) -> None:
    """Returns when a session of the user waits for a lock of another."""
    await soon(lambda: bool(user.waiting()), "a session waits for a lock")


async def number(connection: oracledb.AsyncConnection, query: str) -> int:
    row = await connection.fetchone(query)
    assert row is not None
    found: int = row[0]
    return found


async def run(
    connection: oracledb.AsyncConnection,
    block: str,
    values: dict[str, Any],
    **out: type,
) -> dict[str, Any]:
    """What the block writes; ``out`` says with which types."""
    with connection.cursor() as cursor:
        written = {name: cursor.var(kind) for name, kind in out.items()}
        await cursor.execute(block, {**values, **written})
        return {name: variable.getvalue() for name, variable in written.items()}


def code_of(error: BaseException) -> str:
    """DPY-… or ORA-…, of an error of the driver's."""
    code: str = error.args[0].full_code
    return code
