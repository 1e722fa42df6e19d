"""Row locks in Django models, in async views.

::

    class Invoice(RowLockFields):  # in models.py; then makemigrations
        total = models.IntegerField()

    async with invoice.row_lock().write("closing the books"):
        await invoice.arefresh_from_db()
        invoice.total += 1
        await invoice.asave()

Each step is one UPDATE that is committed at once: lock outside of ``atomic()``. Needs
asyncio, and SQLite, PostgreSQL, MariaDB, MySQL or Oracle. ``save()`` does not write the
fields of the lock: their values are always those of the database.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connections, models, router

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
from aiorwlock_remote.errors import ConfigurationError, LockError
from aiorwlock_remote.fencing.sql import driver_code
from aiorwlock_remote.integrations._row_locks import (
    PlanRunner,
    RowSessions,
    from_driver_codes,
)
from aiorwlock_remote.recipes.row_lock.lock import RowLock
from aiorwlock_remote.recipes.row_lock.target import RowSql, RowTarget

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")

MAX_ROW_WAIT = 2_000
"""Milliseconds that PostgreSQL waits for a row that a transaction has locked."""
QUEUE_FULL = "54000"
"""PostgreSQL's SQLSTATE if the queue of notifications is full."""

if TYPE_CHECKING:
    _Char = models.CharField[str, str]
    _Integer = models.IntegerField[int, int]
    _Text = models.TextField[str | None, str | None]
else:
    _Char, _Integer, _Text = models.CharField, models.IntegerField, models.TextField


class _LockField:
    """Base of the lock's fields, which ``save()`` does not write.

    An instance that was loaded before the row was locked would write the old mark over
    the lock (test_saving_leaves_the_lock_alone).
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: ANN401, FBT001
        field: Any = self
        if add:
            return getattr(model_instance, field.attname)
        return models.F(field.attname)


class LockMarkField(_LockField, _Char):
    """The mark of the lock: ``Unlock``, ``ReadLock`` or ``WriteLock``."""


class LockCountField(_LockField, _Integer):
    """The number of readers that hold the row."""


class LockTextField(_LockField, _Text):
    """Text field of a row lock: the last holder's reason, or its grants with leases."""


class RowLockFields(models.Model):
    """Abstract base of your model: the columns of a row lock (mark, count, reason)."""

    lock_mark: LockMarkField = LockMarkField(
        max_length=9, default=UNLOCK, editable=False
    )
    read_lock_count: LockCountField = LockCountField(default=0, editable=False)
    lock_reason: LockTextField = LockTextField(null=True, blank=True, editable=False)

    class Meta:
        """Django's options: only models that derive from this one have tables."""

        abstract = True

    def row_lock(self, *, lease: float | None = None) -> RowLock:
        """Return the lock of this row in the database that ``save()`` would write to.

        ``lease``: seconds; None: grants never expire. Raise ``ConfigurationError`` if
        the row is not saved yet, ``lease`` is not valid, or no asyncio loop is running.
        """
        database = router.db_for_write(type(self), instance=self)
        return row_lock(type(self), self.pk, lease=lease, database=database)


class RowLeaseFields(RowLockFields):
    """Abstract base of your model: the columns of a row lock, and one for leases."""

    lock_grants: LockTextField = LockTextField(null=True, blank=True, editable=False)

    class Meta(RowLockFields.Meta):
        """Django's options: only models that derive from this one have tables."""

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
    """Return the lock of one row of a model; no I/O.

    With multi-table inheritance, a model whose lock fields are its parent's has the
    parent's lock.

    Args:
        model: The model whose fields contain the lock.
        pk: The row's primary key.
        lease: Seconds that a grant lives without renewal; None: for ever, as the
            published statements do.
        database: An alias in ``DATABASES``; None: where the routers write the model.
        mark: Name of the field for ``Unlock``, ``ReadLock`` or ``WriteLock``.
        count: Name of the field for the number of readers.
        reason: Name of the field for the reason.
        grants: Name of the field for leases; unused without ``lease``.

    Raises:
        ConfigurationError: the field or database does not exist, ``pk`` is no key of
            the model, or no asyncio loop is running.
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
        raise ConfigurationError(
            what=f"row locks do not exist for {connection.vendor}",
            hint=f"use a database of {', '.join(DIALECTS)}",
        )
    columns = [primary.column, *(fields[name].column for name in wanted)]
    table = RowTable(owner._meta.db_table, *columns)
    # As Django would send it: "7" and 7 are one row of a model with an integer key.
    try:
        key = check_key(primary.get_prep_value(primary.to_python(pk)))
    except (TypeError, ValueError, ValidationError) as exc:
        raise ConfigurationError(what=f"{label}: {quoted(pk)} is no key of it") from exc
    # Django's cursors take %s for all databases, and UUIDs as `_execute` converts them.
    dialect = replace(dialect.patient(MAX_ROW_WAIT), bind="%s", uuids=True)
    sql = RowSql(table, key, dialect)
    row = RowTarget.of(sql, str(pk), sql, lease)
    return _SESSIONS.lock(row, database, partial(_plan_runner, database))


def _table(model: type[M], fields: list[Any]) -> tuple[type[models.Model], Any]:
    label = model._meta.label
    owners = {field.model for field in fields}
    if len(owners) > 1:
        raise ConfigurationError(
            what=f"{label}: the fields of the lock are in several tables",
            hint="put them all in one model",
        )
    owner: type[models.Model] = owners.pop()
    primary: Any = model._meta.pk
    while primary.model is not owner:
        if not getattr(primary.remote_field, "parent_link", False):
            theirs = owner._meta.label
            raise ConfigurationError(
                what=f"{label}: its key is not that of {theirs}, which has the lock",
                hint=f"use row_lock({theirs}, …)",
            )
        primary = primary.target_field
    if primary.column is None:
        raise ConfigurationError(
            what=f"{label}: its key has several columns",
            hint="a row lock needs one column that identifies the row",
        )
    return owner, primary


_SESSIONS: RowSessions[Statement] = RowSessions(
    "Django", "call row_lock in an async view or another coroutine", {}
)
"""By database alias."""


def _plan_runner(database: str) -> PlanRunner[Statement]:
    # In Django's thread, where its connections are. Without a timeout: a thread cannot
    # be cancelled, and the next plan would wait for it anyway.
    run = sync_to_async(partial(_run_plan, database))
    return PlanRunner(f"database {database!r}", run)


def _run_plan(database: str, plan: Plan[Statement, T]) -> T:
    try:
        connection = connections[database]
        _make_usable(connection)
        with connection.cursor() as cursor:
            return run_plan_blocking(plan, partial(_execute, connection, cursor))
    except LockError:
        raise
    except Exception as exc:
        cause = exc.__cause__ or exc  # the driver's
        raise from_driver_codes(cause, f"database {database!r}") from exc


def _make_usable(connection: Any) -> None:  # noqa: ANN401 - Django's
    if connection.in_atomic_block or not connection.get_autocommit():
        raise ConfigurationError(
            what="a row lock inside of atomic(): other connections would not see it "
            "before the transaction ends",
            hint="lock first, then begin the transaction",
        )
    # As Django does between requests, of which there are none here: after a restart of
    # the server each lock would fail (test_a_server_that_came_back).
    wary = connection.settings_dict.get("CONN_HEALTH_CHECKS")
    doubted = connection.connection is not None and wary
    if (doubted or connection.errors_occurred) and not connection.is_usable():
        connection.close()


_UUID = cast("Any", models).UUIDField()
"""Converts a UUID to what the database's driver takes."""


def _execute(connection: Any, cursor: Any, statement: Statement) -> StatementResult:  # noqa: ANN401 - Django's
    values = [
        _UUID.get_db_prep_value(value, connection) if isinstance(value, UUID) else value
        for value in statement.values
    ]
    quiet, wakes, _ = statement.text.partition(WAKES)
    try:
        cursor.execute(statement.text, values)
    except DatabaseError as exc:
        # PostgreSQL refuses a release whose notification it cannot queue: without the
        # repetition the row would stay locked until the queue is read.
        if not wakes or driver_code(exc.__cause__) != QUEUE_FULL:
            raise
        cursor.execute(quiet, values)
    if connection.vendor == "mysql":
        # Its drivers believe a greeting that says "autocommit" whatever the server does
        # (test_autocommit.py).
        connection.commit()
    if statement.only_reads:
        return StatementResult(rows=tuple(map(tuple, cursor.fetchall())))
    return StatementResult(cursor.rowcount)
