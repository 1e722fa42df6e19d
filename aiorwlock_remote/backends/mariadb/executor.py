"""Requests and answers: which statements a step is, and who carries them."""

from __future__ import annotations

from functools import partial

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.mariadb import errors
from aiorwlock_remote.backends.mariadb.connector import CUSTOM
from aiorwlock_remote.backends.mariadb.driver import Connection, Error, Row, run
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.statements import ROLLBACK, Door, statement, step
from aiorwlock_remote.cas.backoff import repeated
from aiorwlock_remote.cas.driver.executor import PerCallExecutor, seat_of
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.table_rows import StoredRow, micros_of, text_at
from aiorwlock_remote.cas.tables import Values


class MariadbExecutor(PerCallExecutor):
    """Requests of one thread or loop, carried on a side by its connections."""

    def __init__(
        self, side: DriverLoop, lines: ConnectionSource[Connection], options: Options
    ) -> None:
        """``lines`` live on ``side``."""
        super().__init__(side, lines, CUSTOM, options.where, options.call_timeout)
        self._options = options

    async def rows(self, name: str, **values: object) -> list[Row]:
        """What any other statement tells.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        text = statement(name, self._options.tables, **values)

        async def work(connection: Connection) -> list[Row]:
            asking = partial(run, connection, text)
            return (await repeated(asking, errors.met))[0].rows

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        """What stands behind that key.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        rows = await self.rows("scan", kind=kind, number=number)
        return [(row[0].decode(), row[1], found_of(row[2:])) for row in rows]

    async def server(self) -> dict[str, str]:
        """What is set there, and for this session.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        told: list[tuple[str, str]] = await self.rows("server")
        return dict(told)

    async def looked(self, values: Values, connection: Connection) -> StoredRow:
        """Both rows, of one moment."""
        return await self._look(connection, values)

    async def swapped(self, values: Values, connection: Connection) -> StoredRow:
        """One request; refused, a second one that looks."""
        made = values["i_version"] is not None
        found = await self._step(connection, values, "change" if made else "make")
        if made or found.done or found.created is None or found.version is not None:
            return found
        return await self._step(connection, values, "adopt")

    async def _step(
        self, connection: Connection, values: Values, door: Door
    ) -> StoredRow:
        seat, tables = seat_of(values), self._options.tables
        known = {
            **values,
            "kind": values["i_kind"],
            "number": values["i_number"],
            "latest": micros_of(str(values["i_latest"])),
        }
        try:
            told = await run(connection, *step(door, seat, known, tables))
        except Error as exc:
            if errors.spoilt(exc):
                raise
            if errors.code_of(exc) != errors.DUPLICATE:
                await run(connection, ROLLBACK)
                raise
            return await self._look(connection, values, ROLLBACK)
        first = told[0] if seat == "stay" else told[1]
        # Whoever leaves has left, also if somebody else took the seat just before.
        if not first.changed or (seat == "move" and not told[2].changed):
            return await self._look(connection, values)
        least = values["n_fence"]
        fence = max(least, first.told) if isinstance(least, int) else None
        return StoredRow(done=True, now=text_at(first.told), fence=fence)

    async def _look(
        self, connection: Connection, values: Values, *before: str
    ) -> StoredRow:
        known = {"kind": values["i_kind"], "number": values["i_number"]}
        text = statement("look", self._options.tables, **known)
        asking = partial(run, connection, *before, text)
        told = await repeated(asking, errors.met)
        (row,) = told[len(before)].rows
        return found_of(row)


def found_of(row: Row) -> StoredRow:
    """What a row of ``look``, or the end of one of ``scan``, tells."""
    now, created, version, record, ticket, since = row
    return StoredRow(
        done=False,
        now=text_at(now),
        created=None if created is None else text_at(created),
        version=_text(version),
        record=_text(record),
        ticket=_text(ticket),
        since=None if since is None else text_at(since),
    )


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
