"""Statements of row locks over Django's connections, each committed at once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, models

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row_dialects import WAKES
from aiorwlock_remote.core.row_plans import (
    Plan,
    Statement,
    StatementResult,
    run_plan_blocking,
)
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, LockError
from aiorwlock_remote.fencing.narrow import code_of
from aiorwlock_remote.integrations import _driver_codes as driver_codes
from aiorwlock_remote.integrations._plan_runner import PlanRunner

T = TypeVar("T")

QUEUE_FULL = "54000"
"""PostgreSQL takes no notifications, see ``backends/postgresql/notices.py``."""
_UUID = cast("Any", models).UUIDField()
"""Knows how a database is told of one, which may have to be asked for that."""


class DjangoPlanRunner(PlanRunner[Statement]):
    """Carries plans out in Django's own thread, each in a task of its own."""

    def __init__(self, database: str) -> None:
        """``database``: its alias in ``DATABASES``."""
        super().__init__()
        self._database = database

    async def carried(self, plan: Plan[Statement, T], pending: Pending[T]) -> None:
        """In that thread."""
        try:
            told = await sync_to_async(self._driven)(plan)
        except LockError as exc:
            pending.set_exception(exc)
        except Exception as exc:  # noqa: BLE001 - handed to whoever awaits
            cause = exc.__cause__ or exc  # the driver's
            pending.set_exception(
                driver_codes.from_driver_codes(cause, f"database {self._database!r}")
            )
        except asyncio.CancelledError:  # the loop ends
            lost = f"database {self._database!r}: the loop ended"
            pending.set_exception(BackendUnavailable(what=lost))
            raise
        else:
            pending.set_result(told)

    def _driven(self, plan: Plan[Statement, T]) -> T:
        connection = connections[self._database]
        if connection.in_atomic_block or not connection.get_autocommit():
            raise ConfigurationError(
                what="a row lock inside of atomic(): nobody would see it",
                hint="lock first, then begin the transaction",
            )
        wary = connection.settings_dict.get("CONN_HEALTH_CHECKS")
        doubted = connection.connection is not None and wary
        if (doubted or connection.errors_occurred) and not connection.is_usable():
            connection.close()  # as Django does between requests
        with connection.cursor() as cursor:
            return run_plan_blocking(plan, partial(_ran, connection, cursor))


def _ran(connection: Any, cursor: Any, statement: Statement) -> StatementResult:  # noqa: ANN401 - Django's
    values = [
        _UUID.get_db_prep_value(value, connection) if isinstance(value, UUID) else value
        for value in statement.values
    ]
    quiet, wakes, _ = statement.text.partition(WAKES)
    try:
        cursor.execute(statement.text, values)
    except DatabaseError as exc:
        if not wakes or code_of(exc.__cause__) != QUEUE_FULL:
            raise
        cursor.execute(quiet, values)  # else the row would stay locked
    if statement.tells:
        return StatementResult(rows=tuple(map(tuple, cursor.fetchall())))
    return StatementResult(cursor.rowcount)
