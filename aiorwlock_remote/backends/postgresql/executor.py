"""Requests and answers: which statement a step is, and who carries it."""

from __future__ import annotations

import json
from functools import partial

from aiorwlock_remote._util.driver_loop import DriverLoop
from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.connector import CUSTOM
from aiorwlock_remote.backends.postgresql.driver import Connection, PostgresError, Row
from aiorwlock_remote.backends.postgresql.notices import Notices
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.statements import (
    BoundStatement,
    look,
    statement,
    swap,
)
from aiorwlock_remote.cas.backoff import repeated
from aiorwlock_remote.cas.driver.executor import PerCallExecutor, seat_of
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.table_rows import StoredRow
from aiorwlock_remote.cas.tables import Values

MAX_NOTIFY_BYTES = 7_800
"""Bytes in a notification, without two times."""


class PostgresqlExecutor(PerCallExecutor):
    """Requests of one thread or loop, carried on a side by its connections."""

    def __init__(
        self, side: DriverLoop, lines: ConnectionSource[Connection], options: Options
    ) -> None:
        """``lines`` live on ``side``."""
        super().__init__(side, lines, CUSTOM, options.where, options.call_timeout)
        self._options = options
        self.notices: Notices = Notices(options.where)

    async def rows(self, name: str, *values: object) -> list[Row]:
        """What any other statement tells.

        Raises:
            BackendError: as ``errors.of`` says.
        """

        async def work(connection: Connection) -> list[Row]:
            asking = partial(connection.fetch, self._text(name), *values)
            return await repeated(asking, errors.met)

        return await self.begin(work)

    async def page(self, kind: str, number: int) -> list[tuple[str, int, StoredRow]]:
        """What stands behind that key.

        Raises:
            BackendError: as ``errors.of`` says.
        """
        rows = await self.rows("scan", kind, number)
        return [
            (row["resource_type"], row["resource_id"], found_of(row)) for row in rows
        ]

    async def looked(self, values: Values, connection: Connection) -> StoredRow:
        """Both rows, of one moment."""
        asking = partial(self._row, look(self._options.schema), values, connection)
        return found_of(await repeated(asking, errors.met))

    async def swapped(self, values: Values, connection: Connection) -> StoredRow:
        """One statement; it tells what stands there if a refusal is no surprise.

        That is a plan of its own, a tenth of the server's work for any statement.
        """
        if not (values.get("wakes") or values.get("ear")):
            return await self._swapped(values, connection)
        quiet = {**values, "wakes": (), "ear": None}
        return await self.notices.sent(
            partial(self._swapped, values, connection),
            partial(self._swapped, quiet, connection),
        )

    async def _swapped(self, values: Values, connection: Connection) -> StoredRow:
        seat, wakes = seat_of(values), bool(values.get("wakes"))
        wait = values.get("wait")
        if isinstance(wait, float):
            values = {**values, "wait": str(max(1, round(wait * 1000)))}
        asking = swap(
            seat,
            self._options.schema,
            taken=values["i_ticket"] is not None,
            made=values["i_version"] is not None,
            begins=values["n_fence"] is not None,
            wakes=wakes,
            tells=wakes and _can_be_told(values),
            came=values.get("ear") is not None,
            lazily=bool(values.get("lazily")),
            asks=not values.get("calm"),
            waits=wait is not None,
        )
        try:
            row = await self._row(asking, values, connection)
        except PostgresError as exc:
            if errors.code_of(exc) not in errors.REFUSED:
                raise
            return await self.looked(values, connection)
        if row is None or (not row["done"] and _as_believed(row, values)):
            # It waited for another step, and sees nothing of that; or it came too late.
            return await self.looked(values, connection)
        return found_of(row, done=row["done"])

    async def _row(self, asking: BoundStatement, values: Values, on: Connection) -> Row:
        return await on.fetchrow(asking.text, *asking.picked(values))

    def _text(self, name: str) -> str:
        return statement(name, self._options.schema)


def found_of(row: Row, *, done: bool = False) -> StoredRow:
    """What a row of ``tell``, ``look`` or ``scan`` tells."""
    return StoredRow(
        done=done,
        now=row["now"],
        fence=None if row["fence"] is None else int(row["fence"]),
        created=row["created"],
        version=row["version"],
        record=row["record"],
        ticket=row["ticket"],
        since=row["since"],
    )


def _can_be_told(values: Values) -> bool:
    """Whether there is room in a notification: our JSON is the longer one."""
    told = (values["i_kind"], values["i_number"], values["n_version"])
    return len(json.dumps((*told, values["n_record"]))) <= MAX_NOTIFY_BYTES


def _as_believed(row: Row, values: Values) -> bool:
    believed = values["i_version"], values["i_ticket"], values["i_since"]
    return (row["version"], row["ticket"], row["since"]) == believed
