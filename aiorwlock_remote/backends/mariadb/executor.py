"""Carries out requests as statements of ``statements.sql``, and reads their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.dialect import NO_ROW_LIMIT
from aiorwlock_remote.backends.mariadb.driver import (
    Connection,
    MariadbDriver,
    Row,
    read,
    roll_back,
    run,
    send,
)
from aiorwlock_remote.backends.mariadb.errors import Error
from aiorwlock_remote.backends.mariadb.schema import check_tables
from aiorwlock_remote.backends.mariadb.statements import (
    ROLLBACK,
    DoormanChange,
    literal,
    renewal_statements,
    statement,
    step_statements,
)
from aiorwlock_remote.cas.backoff import retry_on_conflict
from aiorwlock_remote.cas.driver.executor import DriverExecutor
from aiorwlock_remote.cas.table_cas import StoredRow, Values, time_text
from aiorwlock_remote.core.row import (
    CONSTRAINT_HINT,
    MARKS,
    Statement,
    StatementResult,
)
from aiorwlock_remote.errors import ConfigurationError, Unsupported

MIN_ROW_LIMIT = 500
"""Most rows that one statement of this package returns, see ``scan``."""

_NO_NUMBER = 1292
"""Server code: a text is compared with a number, or stored in its column."""
_CONSTRAINTS = {1048, 1062, 1451, 1452, 3819, 4025}


class MariadbExecutor(DriverExecutor):
    """Carries out requests on MariaDB or MySQL, by statements of ``statements.sql``."""

    driver: MariadbDriver

    async def check_server(self, logged_in: Callable[[], object]) -> None:
        server = await self.server()
        logged_in()
        check_answers(server, self._where)
        self.driver.dialect.check_version(server["version"], self._where)
        check_session(server, self._where)
        owner = self.driver.options.tables or self.driver.options.database
        if not owner:
            ((owner,),) = await self.rows("owner")
        if not owner:
            raise ConfigurationError(
                what=f"{self._where}: its connections are in no database",
                hint=f"{self.driver.dialect.backend}(pool, database=…)",
            )
        columns = await self.rows("columns", owner=owner)
        keys = await self.rows("keys", owner=owner)
        check_tables(columns, keys, self._where, self.driver.dialect)

    async def rows(self, name: str, **values: object) -> list[Row]:
        text = statement(name, self.driver.options.tables, **values)

        async def work(connection: Connection) -> list[Row]:
            request = partial(run, connection, text)
            return (await retry_on_conflict(request, errors.is_contention))[0].rows

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        rows = await self.rows("scan", kind=kind, number=number)
        return [(row[0].decode(), row[1], stored_row_of(row[2:])) for row in rows]

    async def server(self) -> dict[str, str]:
        """Return the server variables that the checks need, by name."""
        settings: list[tuple[str, str]] = await self.rows("server")
        return dict(settings)

    async def swap(self, values: Values, connection: Connection) -> StoredRow:
        made = values["i_version"] is not None
        found = await self._step(connection, values, "change" if made else "make")
        if made or found.done or found.created is None or found.version is not None:
            return found
        # The doormans row is a published one, without our columns' values.
        return await self._step(connection, values, "adopt")

    async def _step(
        self, connection: Connection, values: Values, doorman: DoormanChange
    ) -> StoredRow:
        tables, dialect = self.driver.options.tables, self.driver.dialect
        text, index = step_statements(doorman, values, tables, dialect)
        try:
            results = await send(connection, text)
        except Error as exc:
            if errors.code_of(exc) not in {errors.DUPLICATE, errors.NOT_CHANGED}:
                # The transaction would stay open and keep its row locks.
                await roll_back(connection, exc)
                raise
            # A row is not as expected: the rollback and the look are one request.
            return await self.look(values, connection, ROLLBACK)
        first = results[index]
        if not first.changed:
            return await self.look(values, connection)
        # ``last_id`` is the server's clock when the statement began: the answer carries
        # it without a further request.
        least = values["n_fence"]
        fence = max(least, first.last_id) if isinstance(least, int) else None
        return StoredRow(done=True, now=first.last_id, fence=fence)

    async def renew(
        self, rows: Sequence[Values], connection: Connection
    ) -> Sequence[StoredRow | None]:
        tables, dialect = self.driver.options.tables, self.driver.dialect
        text, indexes = renewal_statements(rows, tables, dialect)
        results = await run(connection, text)
        changes = [results[index] for index in indexes]
        return [
            StoredRow(done=True, now=change.last_id) if change.changed else None
            for change in changes
        ]

    async def look(
        self, values: Values, connection: Connection, *before: str
    ) -> StoredRow:
        # ``before``: statements to run first, in the same request.
        known = {"kind": values["i_kind"], "number": values["i_number"]}
        text = statement("look", self.driver.options.tables, **known)
        request = partial(read, connection, *before, text)
        results = await retry_on_conflict(request, errors.is_contention)
        (row,) = results[len(before)].rows
        return stored_row_of(row)

    async def run_row(
        self, statement: Statement, connection: Connection
    ) -> StatementResult:
        text = statement.text % tuple(map(literal, statement.values))
        # With a limit: a statement that waits for a row goes on waiting when its client
        # is gone, and would then lock the row for no task.
        limited = self.driver.dialect.limit_time(
            text, self.driver.options.call_timeout / 2
        )
        before, after = limited.before, limited.after
        try:
            results = await run(connection, *before, limited.statement, *after)
        except Error as exc:
            if after and not errors.is_broken(exc):
                await run(connection, *after)
            code = errors.code_of(exc)
            if code == _NO_NUMBER:
                what = errors.message_of(exc)
                if any(mark in what for mark in MARKS):
                    hint = self.driver.dialect.schema_hint
                    raise Unsupported(what=what, hint=hint, lacks="tables") from exc
                # MySQL refuses the key; to MariaDB it is the number 0.
                raise ConfigurationError(
                    what=what, hint=errors.OTHER_NAME, refused="value"
                ) from exc
            if code in _CONSTRAINTS:
                what = errors.message_of(exc)
                raise ConfigurationError(what=what, hint=CONSTRAINT_HINT) from exc
            raise
        result = results[len(before)]
        if statement.only_reads:
            return StatementResult(rows=tuple(result.rows))
        return StatementResult(result.changed)


def stored_row_of(row: Row) -> StoredRow:
    """Convert a row of ``look``, or a row of ``scan`` without its first two columns."""
    now, created, version, record, ticket, since = row
    return StoredRow(
        done=False,
        now=now,
        created=None if created is None else time_text(created),
        version=_text(version),
        record=_text(record),
        ticket=_text(ticket),
        since=None if since is None else time_text(since),
    )


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def check_answers(server: Mapping[str, str], where: str) -> None:
    """Raise ``ConfigurationError`` if results are cut short or of a bad charset.

    ``server``: result of ``MariadbExecutor.server``. The hint is the SQL that helps.
    """
    if any("\0" in name for name in server):
        raise ConfigurationError(
            what=f"{where}: answers are in characters that the driver does not read",
            hint="SET NAMES utf8mb4",
        )
    needed = {"version", "sql_mode", "sql_select_limit"}
    if not needed <= {*server} or int(server["sql_select_limit"]) < MIN_ROW_LIMIT:
        raise ConfigurationError(
            what=f"{where}: sql_select_limit keeps rows back",
            hint=f"SET SESSION sql_select_limit = {NO_ROW_LIMIT}",
        )


def check_session(server: Mapping[str, str], where: str) -> None:
    """Raise an error if the SQL mode, isolation level or binary log is unsuitable.

    ``server``: result of ``MariadbExecutor.server``. The hint is the SQL that helps.

    Raises:
        ConfigurationError: It is a setting of the session.
        Unsupported: The server logs statements.
    """
    modes = server["sql_mode"].split(",")
    if not {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"} & {*modes}:
        raise ConfigurationError(
            what=f"{where}: sql_mode is not strict, names could be cut",
            hint="SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
        )
    level = server.get("tx_isolation") or server.get("transaction_isolation")
    if level == "READ-UNCOMMITTED":
        raise ConfigurationError(
            what=f"{where}: sessions read what is not committed",
            hint="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )
    # A replica cannot carry out statements that depend on the row count of the one
    # before; and InnoDB refuses them at our own sessions' isolation level.
    if server.get("log_bin") == "ON" and server.get("binlog_format") == "STATEMENT":
        raise Unsupported(
            what=f"{where}: BINLOG_FORMAT = STATEMENT, replicas could not follow",
            hint=errors.ROW_EVENTS,
        )
