"""Executing statements and blocks, and fetching what they found."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable

from tests.servers.oracle import ddl, pg, plsql, sql
from tests.servers.oracle.cursors import Cursor, columns
from tests.servers.oracle.database import Database, not_compiled
from tests.servers.oracle.errors import NO_MORE_ROWS, OracleError, unsupported
from tests.servers.oracle.functions import Function
from tests.servers.oracle.profiles import Profile
from tests.servers.oracle.replies import Replies
from tests.servers.oracle.requests import COMMITS, Call, Row
from tests.servers.oracle.tokens import Statement
from tests.servers.oracle.values import IN_POSTGRESQL, TEXTS, Value

#: Lets the server make a function of a block, once for all sessions.
MakeBlock = Callable[[plsql.Block], Awaitable[None]]

_TEXT_IN_SQL = 4000


class Executor:
    """The cursors of one session."""

    def __init__(
        self,
        database: Database,
        profile: Profile,
        replies: Replies,
        make_block: MakeBlock,
    ) -> None:
        self._database = database
        self._profile = profile
        self._replies = replies
        self._make_block = make_block
        self._numbers = itertools.count(1)
        self.cursors: dict[int, Cursor] = {}

    def close(self, numbers: list[int]) -> None:
        for number in numbers:
            self.cursors.pop(number, None)

    def fetch(self, call: Call) -> bytes:
        cursor = self.cursors.get(call.cursor)
        if cursor is None:
            raise OracleError(1001, "invalid cursor")
        return self._next_rows(cursor, call.fetch)

    async def execute(self, call: Call) -> bytes:
        statement = call.statement
        assert statement is not None
        cursor = self._cursor(call, statement)
        types = tuple(IN_POSTGRESQL.get(bind.kind, "") for bind in cursor.binds)
        if "" in types:
            raise unsupported(f"binds of types {[b.kind for b in cursor.binds]}")
        if call.parse_only:
            return await self._parse(cursor, types)
        if statement.kind == "ddl":
            return await self._ddl(cursor)
        if len(types) != len(statement.binds):
            raise OracleError(1008, "not all variables bound")
        if statement.kind == "plsql":
            return await self._plsql(call, cursor, types)
        translated = sql.translated(cursor.sql, types, self._profile)
        _check_lengths(call, translated)
        if translated.wait is not None:
            await self._database.begin()
            wait = f"SET LOCAL lock_timeout = {translated.wait * 1000}"
            await self._database.connection.execute(wait)
        if statement.kind == "query":
            return await self._query(call, cursor, translated)
        return await self._change(call, cursor, translated)

    def _cursor(self, call: Call, statement: Statement) -> Cursor:
        cursor = self.cursors.get(call.cursor)
        if cursor is None:
            cursor = Cursor(next(self._numbers), call.sql, statement)
            self.cursors[cursor.number] = cursor
            call.cursor = cursor.number
        if cursor.sql != call.sql:
            cursor.sql, cursor.statement = call.sql, statement
            cursor.described = False
        cursor.binds = call.binds
        return cursor

    async def _ddl(self, cursor: Cursor) -> bytes:
        text = cursor.sql.strip().upper()
        if text == "COMMIT":
            await self._database.commit()
        elif text == "ROLLBACK":
            await self._database.rollback()
        elif translated := ddl.translated(cursor.sql):
            await self._database.run(translated)
        else:
            await self._database.commit()
        return self._end(cursor)

    async def _parse(self, cursor: Cursor, types: tuple[str, ...]) -> bytes:
        """Names and rights are checked, nothing is done."""
        head = b""
        if cursor.statement.kind == "plsql":
            await self._block(cursor, types or ("text",) * len(cursor.statement.binds))
        elif cursor.statement.kind != "ddl":
            text = sql.translated(cursor.sql, types, self._profile).text
            prepared = await self._database.parsed(text)
            cursor.columns = columns(prepared)
            if cursor.statement.kind == "query":
                head = self._replies.description(cursor.columns)
        return head + self._end(cursor)

    async def _block(self, cursor: Cursor, types: tuple[str, ...]) -> plsql.Block:
        """What Oracle does when it compiles one."""
        binds = cursor.statement.binds
        try:
            block = plsql.translated(cursor.sql, binds, types, self._profile)
        except OracleError as error:
            raise not_compiled(error) from error
        await self._database.check(block.needs)
        await self._make_block(block)
        return block

    def _end(self, cursor: Cursor, rows: int = 0) -> bytes:
        self._replies.in_transaction = self._database.in_transaction
        return self._replies.end(cursor=cursor.number, rows=rows)

    async def _query(self, call: Call, cursor: Cursor, query: sql.Sql) -> bytes:
        values = _values(call.rows[0], query.used)

        async def work() -> tuple[pg.Prepared, list[pg.Row]]:
            rows = await self._database.rows(query.text, values)
            return await self._database.prepared(query.text), rows

        commits = bool(call.options & COMMITS)
        prepared, rows = await self._database.atomic(
            work, commits=commits and query.locks, begins=query.locks
        )
        cursor.columns = columns(prepared)
        cursor.rows = [tuple(row.values()) for row in rows]
        cursor.fetched = 0
        known = call.function == Function.REEXECUTE_FETCH or (
            cursor.described and not call.new
        )
        head = b"" if known else self._replies.description(cursor.columns)
        cursor.described = True
        if not call.fetch:
            return head + self._end(cursor)
        return head + self._next_rows(cursor, call.fetch)

    def _next_rows(self, cursor: Cursor, count: int) -> bytes:
        part, cursor.rows = cursor.rows[:count], cursor.rows[count:]
        cursor.fetched += len(part)
        rows = self._replies.rows(cursor.columns, part)
        if cursor.rows:
            return rows + self._end(cursor, cursor.fetched)
        self._replies.in_transaction = self._database.in_transaction
        return rows + self._replies.end(
            NO_MORE_ROWS, cursor=cursor.number, rows=cursor.fetched
        )

    async def _change(self, call: Call, cursor: Cursor, change: sql.Sql) -> bytes:
        binds = cursor.statement.binds
        returning = [cursor.binds[n] for n, b in enumerate(binds) if b.returning]

        async def work() -> tuple[bytes, int]:
            out, total = b"", 0
            for row in call.rows:
                found = await self._database.rows(
                    change.text, _values(row, change.used)
                )
                prepared = await self._database.prepared(change.text)
                total += int((prepared.get_statusmsg() or "0").split()[-1])
                if returning:
                    rows = [tuple(one.values()) for one in found]
                    out += self._replies.returned(returning, rows)
            return out, total

        commits = bool(call.options & COMMITS)
        if len(call.rows) > 1:  # one transaction for all of them
            await self._database.begin()
        out, total = await self._database.atomic(work, commits=commits)
        return out + self._end(cursor, total)

    async def _plsql(self, call: Call, cursor: Cursor, types: tuple[str, ...]) -> bytes:
        binds = cursor.statement.binds
        block = await self._block(cursor, types)
        places = ", ".join(f"${n}::{kind}" for n, kind in enumerate(types, start=1))
        text = f"SELECT * FROM {block.name}({places})"  # noqa: S608 - a name of ours
        everything = tuple(range(len(types)))
        written = [cursor.binds[n] for n in block.written]

        async def work() -> bytes:
            out = b""
            for row in call.rows:
                found = await self._database.rows(text, _values(row, everything))
                if written:
                    out += self._replies.written(written, tuple(found[0].values()))
            return out

        commits = bool(call.options & COMMITS) or block.ends == "COMMIT"
        try:
            out = await self._database.atomic(work, commits=commits)
        except OracleError as error:
            raise not_compiled(error) from error
        if block.ends == "ROLLBACK":
            await self._database.rollback()
        head = b""
        if written and call.function == Function.EXECUTE:
            head = self._replies.directions(binds)
        return head + out + self._end(cursor, 1)


def _values(row: Row, used: tuple[int, ...]) -> list[Value]:
    return [row.get(place) for place in used]


def _check_lengths(call: Call, statement: sql.Sql) -> None:
    """A long text may become a column's value and nothing else."""
    for row in call.rows:
        for place, value in row.items():
            if (
                call.binds[place].kind in TEXTS
                and place not in statement.direct
                and value is not None
                and len(value.encode()) > _TEXT_IN_SQL
            ):
                raise OracleError(
                    1461, "can bind a LONG value only for insert into a LONG column"
                )
