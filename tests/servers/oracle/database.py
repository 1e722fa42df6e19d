"""The session in PostgreSQL behind a session of the double's."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tests.servers.oracle import pg
from tests.servers.oracle.errors import END_OF_FILE, OracleError, from_postgresql
from tests.servers.oracle.plsql import Need
from tests.servers.oracle.profiles import Profile

T = TypeVar("T")

_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
_INSIDE_BLOCK = frozenset({900, 904, 907, 923, 925, 933, 942, 1031, 30089})


class Database:
    """Transactions as Oracle has them, on a connection to PostgreSQL.

    A change begins a transaction, a failed statement undoes itself alone, a query that
    locks nothing begins none.
    """

    def __init__(self, connection: pg.Connection, user: str) -> None:
        self.connection = connection
        self.pid: int = connection.get_server_pid()
        self.in_transaction = False
        self._user = user
        self._prepared: dict[str, pg.Prepared] = {}
        self._checked: set[tuple[Need, ...]] = set()

    @classmethod
    async def open(cls, dsn: str, user: str, profile: Profile, name: str) -> Database:
        """As that user, whose schema comes first in its search path."""
        settings = {
            "application_name": name,
            "jit": "off",
            "ora.release": ".".join(map(str, profile.release)),
            "search_path": '"$user", ora, pg_catalog',
            "TimeZone": "UTC",
        }
        return cls(await pg.connect(dsn, user.lower(), settings), user)

    def close(self) -> None:
        """At once; what was not committed is undone."""
        self.connection.terminate()

    async def begin(self) -> None:
        if not self.in_transaction:
            await self.connection.execute("BEGIN")
            self.in_transaction = True

    async def commit(self) -> None:
        await self._end("COMMIT")

    async def rollback(self) -> None:
        await self._end("ROLLBACK")

    async def _end(self, how: str) -> None:
        if not self.in_transaction:
            return
        self.in_transaction = False
        try:
            await self.connection.execute(how)
        except pg.LOST:
            raise END_OF_FILE from None

    async def prepared(self, text: str) -> pg.Prepared:
        found = self._prepared.get(text)
        if found is None:
            found = self._prepared[text] = await self.connection.prepare(text)
        return found

    async def rows(self, text: str, values: Sequence[Any]) -> list[pg.Row]:
        prepared = await self.prepared(text)
        try:
            return await prepared.fetch(*values)
        except pg.TableChanged:  # a table has changed
            self._prepared.clear()
            raise

    async def parsed(self, text: str) -> pg.Prepared:
        """Prepared, and nothing else; names and rights to them are checked."""
        return await self._mapped(lambda: self.prepared(text))

    async def run(self, text: str) -> None:
        """A statement that ends the transaction, as DDL does in Oracle."""
        await self.commit()
        self._prepared.clear()
        self._checked.clear()
        await self._mapped(lambda: self.connection.execute(text))

    async def atomic(
        self, work: Callable[[], Awaitable[T]], *, commits: bool, begins: bool = True
    ) -> T:
        """``work`` as one statement; afterwards committed if that is wanted.

        Without a transaction that is open each statement of PostgreSQL's is one.
        """
        if self.in_transaction or (begins and not commits):
            result = await self._mapped(lambda: self._inside(work))
            if commits:
                await self.commit()
            return result
        return await self._mapped(work)

    async def _inside(self, work: Callable[[], Awaitable[T]]) -> T:
        await self.begin()
        await self.connection.execute("SAVEPOINT the_statement")
        try:
            result = await work()
        except pg.PostgresError:
            await self.connection.execute("ROLLBACK TO the_statement")
            raise
        await self.connection.execute("RELEASE the_statement")
        return result

    async def _mapped(self, work: Callable[[], Awaitable[T]]) -> T:
        """With Oracle's errors for PostgreSQL's."""
        try:
            return await work()
        except pg.LOST as error:
            raise END_OF_FILE from error
        except pg.Denied as error:
            raise await self._denied(error) from error
        except pg.PostgresError as error:
            raise from_postgresql(error, self._user) from error

    async def _denied(self, error: pg.PostgresError) -> OracleError:
        """Whoever has no right to a table does not see that there is one."""
        named = re.search(r"permission denied for table (\S+)", str(error))
        if named and not await self._sees(named.group(1)):
            return OracleError(942, "table or view does not exist")
        return OracleError(1031, "insufficient privileges")

    async def _sees(self, table: str) -> bool:
        # A failed transaction answers nothing, but then a savepoint was undone.
        found = await self.connection.fetch(
            "SELECT FROM pg_class WHERE relname = $1 AND has_table_privilege(oid, $2)",
            table,
            _RIGHTS,
        )
        return bool(found)

    async def check(self, needs: tuple[Need, ...]) -> None:
        """What Oracle finds when it compiles a block, before anything runs."""
        if needs not in self._checked:
            await self._mapped(lambda: self._check(needs))
            self._checked.add(needs)

    async def _check(self, needs: tuple[Need, ...]) -> None:
        for table, right in needs:
            found = await self.connection.fetch(
                "SELECT has_table_privilege(oid, $2) AS may FROM pg_class "
                "WHERE oid = to_regclass($1) AND has_table_privilege(oid, $3)",
                *(table, right, _RIGHTS),
            )
            if not found:
                error = OracleError(942, "table or view does not exist")
                raise not_compiled(error)
            if not found[0]["may"]:
                raise not_compiled(OracleError(1031, "insufficient privileges"))


def not_compiled(error: OracleError) -> OracleError:
    """What becomes of an error that is found when a block is compiled."""
    if error.number not in _INSIDE_BLOCK:
        return error
    return OracleError(
        6550,
        f"line 1, column 1:\nPL/SQL: {error.message}\n"
        "ORA-06550: line 1, column 1:\nPL/SQL: SQL Statement ignored",
    )
