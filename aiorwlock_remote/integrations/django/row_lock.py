"""Row locks in models of yours, in async views.

::

    class Invoice(RowLockFields):  # in models.py; then makemigrations
        total = models.IntegerField()

    async with invoice.row_lock().write("closing the books"):
        await invoice.arefresh_from_db()
        invoice.total += 1
        await invoice.asave()

Each step is one UPDATE, committed at once: lock outside of ``atomic()``. On asyncio;
SQLite, PostgreSQL, MariaDB, MySQL and Oracle. The fields belong to the lock: ``save()``
leaves them as they are in the database.

Statements of row locks over Django's connections, each committed at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connections, models, router

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row import (
    UNLOCK,
    Plan,
    RowTable,
    Statement,
    StatementResult,
    check_key,
    run_plan_blocking,
)
from aiorwlock_remote.core.row_dialects import DIALECTS, WAKES
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import MIN_LEASE, check_seconds
from aiorwlock_remote.errors import BackendUnavailable, ConfigurationError, LockError
from aiorwlock_remote.fencing.sql import driver_code
from aiorwlock_remote.integrations import _row_locks as driver_codes
from aiorwlock_remote.integrations._row_locks import PlanRunner, RowLockManagers
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.manager import RowLockManager
from aiorwlock_remote.recipes.row_lock.target import RowIdentity, RowSql, RowTarget

T = TypeVar("T")

QUEUE_FULL = "54000"
"""PostgreSQL takes no notifications, see ``backends/postgresql/executor.py``."""
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
            return run_plan_blocking(plan, partial(_execute, connection, cursor))


def _execute(connection: Any, cursor: Any, statement: Statement) -> StatementResult:  # noqa: ANN401 - Django's
    values = [
        _UUID.get_db_prep_value(value, connection) if isinstance(value, UUID) else value
        for value in statement.values
    ]
    quiet, wakes, _ = statement.text.partition(WAKES)
    try:
        cursor.execute(statement.text, values)
    except DatabaseError as exc:
        if not wakes or driver_code(exc.__cause__) != QUEUE_FULL:
            raise
        cursor.execute(quiet, values)  # else the row would stay locked
    if statement.tells:
        return StatementResult(rows=tuple(map(tuple, cursor.fetchall())))
    return StatementResult(cursor.rowcount)


M = TypeVar("M", bound=models.Model)

LOCK_WAIT = 2_000
"""Milliseconds for which PostgreSQL waits for a row that a transaction has locked."""


if TYPE_CHECKING:
    _Char = models.CharField[str, str]
    _Integer = models.IntegerField[int, int]
    _Text = models.TextField[str | None, str | None]
else:
    _Char, _Integer, _Text = models.CharField, models.IntegerField, models.TextField


class _LockField:
    """What an instance was loaded with is old: its update leaves the column alone."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: ANN401, FBT001
        """The value of a new row, else the column itself."""
        field: Any = self
        if add:
            return getattr(model_instance, field.attname)
        return models.F(field.attname)


class LockMarkField(_LockField, _Char):
    """``Unlock``, ``ReadLock`` or ``WriteLock``."""


class LockCountField(_LockField, _Integer):
    """How many readers."""


class LockTextField(_LockField, _Text):
    """A reason, or grants."""


class RowLockFields(models.Model):
    """The three published columns: derive your model from it."""

    lock_mark: LockMarkField = LockMarkField(
        max_length=9, default=UNLOCK, editable=False
    )
    read_lock_count: LockCountField = LockCountField(default=0, editable=False)
    lock_reason: LockTextField = LockTextField(null=True, blank=True, editable=False)

    class Meta:
        """Only its children have tables."""

        abstract = True

    def row_lock(self, *, lease: float | None = None) -> RowLock:
        """The lock of this row, where ``save()`` would write it; as ``row_lock``."""
        database = router.db_for_write(type(self), instance=self)
        return row_lock(type(self), self.pk, lease=lease, database=database)


class RowLeaseFields(RowLockFields):
    """The same, and the one for leases."""

    lock_grants: LockTextField = LockTextField(null=True, blank=True, editable=False)

    class Meta(RowLockFields.Meta):
        """Only its children have tables."""

        abstract = True


def row_lock(
    model: type[M],
    pk: object,
    *,
    lease: float | None = None,
    database: str | None = None,
    mark: str = "lock_mark",
    count: str = "read_lock_count",
    reason: str = "lock_reason",
    grants: str = "lock_grants",
) -> RowLock:
    """The lock of one row of that model; no I/O.

    ``lease``: seconds a grant lives unless it is renewed; None: as published, for ever.
    ``database``: its alias in ``DATABASES``; None: where the routers have the model
    written. The others are the names of the fields. A model with a table of its own
    beside its parent's has the lock of the parent, if the fields are there.

    Raises:
        ConfigurationError: no such field or database, not in an asyncio loop, no key.
    """
    check_seconds("lease", lease, least=MIN_LEASE)
    label = model._meta.label
    if pk is None:
        raise ConfigurationError(what=f"{label}: the row is not saved yet")
    fields: dict[str, Any] = {f.name: f for f in model._meta.concrete_fields}
    wanted = (mark, count, reason) if lease is None else (mark, count, reason, grants)
    for name in wanted:
        if name not in fields:
            raise ConfigurationError(
                what=f"{label} has no field {name}",
                hint="derive it from RowLockFields or RowLeaseFields; makemigrations",
            )
    owner, primary = _table(model, [fields[name] for name in wanted])
    database = database or router.db_for_write(model)
    try:
        connection: Any = connections[database]
    except Exception as exc:
        raise ConfigurationError(what=f"database {quoted(database)}: {exc}") from exc
    dialect = DIALECTS.get(connection.vendor)
    if dialect is None:
        raise ConfigurationError(what=f"no row locks on {connection.vendor}")
    columns = [primary.column, *(fields[name].column for name in wanted)]
    table = RowTable(owner._meta.db_table, *columns)
    try:
        key = check_key(primary.get_prep_value(primary.to_python(pk)))
    except (TypeError, ValueError, ValidationError) as exc:
        raise ConfigurationError(what=f"{label}: {quoted(pk)} is no key of it") from exc
    dialect = replace(dialect.patient(LOCK_WAIT), bind="%s", uuids=True)
    texts = RowSql(table, key, dialect)
    row = RowTarget.of(table.name, str(pk), texts, texts, lease)
    return RowLock(_manager(database), row)


def _table(model: type[M], fields: list[Any]) -> tuple[type[models.Model], Any]:
    """The model in whose table these are; and its key, if the model's is the same."""
    label = model._meta.label
    owners = {field.model for field in fields}
    if len(owners) > 1:
        raise ConfigurationError(what=f"{label}: a lock in several tables")
    owner: type[models.Model] = owners.pop()
    primary: Any = model._meta.pk
    while primary.model is not owner:
        if not getattr(primary.remote_field, "parent_link", False):
            theirs = owner._meta.label
            raise ConfigurationError(
                what=f"{label}: its key is not that of {theirs}, which has the lock",
                hint=f"the lock of that {theirs}",
            )
        primary = primary.target_field
    if primary.column is None:
        raise ConfigurationError(
            what=f"{label}: a key of several columns",
            hint="a row lock needs one column that tells rows apart",
        )
    return owner, primary


_MANAGERS: RowLockManagers[Statement] = RowLockManagers()
_KNOWN: dict[str, set[RowIdentity]] = {}
"""Kinds of rows, by database."""


def _manager(database: str) -> RowLockManager[Statement]:
    known = _KNOWN.setdefault(database, set())
    try:
        return _MANAGERS.desk(database, known, partial(DjangoPlanRunner, database))
    except RuntimeError:
        raise ConfigurationError(
            what="a row lock of Django is used in an asyncio loop"
        ) from None
