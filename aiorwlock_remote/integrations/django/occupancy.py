"""Objects occupied by rows of one of your models, in async views.

::

    class Occupation(OccupancyRecord):  # in models.py; then makemigrations
        pass

    occupy = occupancy(Occupation).occupy

    async with occupy(book):
        ...

Each step is one short transaction of its own: occupy outside of ``atomic()``, whose
changes other connections do not see before it ends. Needs asyncio, and SQLite,
PostgreSQL, MariaDB or MySQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import (
    Error,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    models,
    router,
    transaction,
)
from django.utils.connection import ConnectionDoesNotExist

from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.occupancy import ExpiryAges, object_name
from aiorwlock_remote.core.row_dialects import DIALECTS
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    Unsupported,
)
from aiorwlock_remote.integrations._occupancy import COLUMNS, WIDTH, RowsOccupancyStore
from aiorwlock_remote.recipes.occupancy import Occupancy
from aiorwlock_remote.runtime.event_loop import require_asyncio

T = TypeVar("T")


class OccupancyRecord(models.Model):
    """Abstract model of the records of who uses an object; derive your model from it.

    ``since``: microseconds of Unix time by the database's clock. If another program
    leaves it NULL, the record's age counts from when this library first reads it.
    """

    object: models.CharField[str, str] = models.CharField(max_length=WIDTH)
    who: models.CharField[str, str] = models.CharField(max_length=WIDTH)
    status: models.CharField[str, str] = models.CharField(max_length=8)
    since: models.BigIntegerField[int | None, int | None] = models.BigIntegerField(
        null=True, blank=True
    )

    class Meta:
        """Django's options: only models that derive from this one have tables."""

        abstract = True
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["object", "who"], name="%(app_label)s_%(class)s_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.object} {self.status} {self.who}"


def occupancy(
    model: type[models.Model],
    *,
    database: str | None = None,
    pending_age: float = 10.0,
    using_age: float | None = 600.0,
) -> Occupancy:
    """Return an ``Occupancy`` whose records are rows of a model; no I/O.

    All programs that occupy the same objects must use the same ages.

    Args:
        model: Has the fields of ``OccupancyRecord``.
        database: An alias in ``DATABASES``; None: where the routers write the model,
            asked at each step.
        pending_age: Seconds after which a record of an attempt counts as dead.
        using_age: Seconds without ``extend`` after which a record of use counts as
            dead; None: never.

    Raises:
        ConfigurationError: a field is missing, or an age is not valid.
    """
    store = ModelOccupancyStore(model, database, ExpiryAges(pending_age, using_age))
    return Occupancy(store, name_of=name_of, event_loop=require_asyncio)


def name_of(thing: object) -> tuple[str, ResourceId]:
    """Return model name and key of a saved row; return a (kind, id) pair as it is.

    Raises:
        ConfigurationError: the row is not saved yet, or ``thing`` is no row or pair.
    """
    if not isinstance(thing, models.Model):
        return object_name(thing)
    if thing.pk is None:
        raise ConfigurationError(what=f"{thing._meta.label} is not saved yet")
    model = thing._meta.concrete_model or type(thing)
    # The root of multi-table inheritance: a row that is loaded as its child is the same
    # object (test_a_row_is_named_by_its_model_and_key).
    while model._meta.parents:
        model = next(iter(model._meta.parents))
    return model._meta.label_lower, str(thing.pk)


class _Now(models.Func):
    # Microseconds of Unix time by the server's clock.

    arity = 0
    output_field: Any = cast("Any", models).BigIntegerField()

    def as_sql(
        self,
        compiler: object,
        connection: Any,  # noqa: ANN401 - Django's
        *_: object,
        **_more: object,
    ) -> tuple[str, tuple[str | int, ...]]:
        del compiler
        return DIALECTS[connection.vendor].now, ()


class ModelOccupancyStore(RowsOccupancyStore):
    """Records of who uses which object, in a model's table; one statement per step."""

    def __init__(
        self, model: type[models.Model], database: str | None, ages: ExpiryAges
    ) -> None:
        super().__init__(ages, _Now())
        known = {field.name for field in model._meta.get_fields()}
        for name in COLUMNS:
            if name not in known:
                raise ConfigurationError(
                    what=f"{model._meta.label} has no field {name}",
                    hint="derive it from OccupancyRecord, and makemigrations",
                )
        self._model = model
        self._database = database

    async def _insert(self, row: Mapping[str, object]) -> None:
        save = self._model(**row).save
        await self._do(lambda alias: save(using=alias, force_insert=True))

    async def _update(self, changes: Mapping[str, object], **row: object) -> bool:
        rows = self._rows(**row)
        return await self._do(lambda alias: rows.using(alias).update(**changes)) > 0

    async def _delete(self, **row: object) -> bool:
        rows = self._rows(**row)
        gone, _ = await self._do(lambda alias: rows.using(alias).delete())
        return gone > 0

    async def _others(
        self, thing: str, who: str, status: str
    ) -> Sequence[tuple[str, int | None, int | None]]:
        others = self._rows(object=thing, status=status).exclude(who=who)
        aged = others.annotate(age=_Now() - models.F("since"))
        look = aged.values_list("who", "since", "age")
        return await self._do(lambda alias: list(look.using(alias)))

    def _rows(self, **fields: object) -> models.QuerySet[Any]:
        return self._model._default_manager.filter(**fields)

    async def _do(self, function: Callable[[str], T]) -> T:
        alias = self._database or router.db_for_write(self._model)
        return await sync_to_async(self._in_transaction)(alias, function)

    def _in_transaction(self, alias: str, function: Callable[[str], T]) -> T:
        try:
            self._check_commits(alias)
            # durable: raises inside of the user's atomic(), instead of joining it
            # (test_inside_of_a_transaction_nobody_would_see_it).
            with transaction.atomic(using=alias, durable=True):
                return function(alias)
        except Error as exc:
            # Django does this between requests only: the next step would get the broken
            # connection again.
            connections[alias].close_if_unusable_or_obsolete()
            raise self._error(exc, alias) from exc
        except (ImproperlyConfigured, ConnectionDoesNotExist) as exc:
            raise ConfigurationError(what=f"{alias}: {exc}") from exc
        except RuntimeError as exc:
            if not connections[alias].in_atomic_block:
                raise
            raise ConfigurationError(
                what="occupying inside of atomic(): other connections would not see it "
                "before the transaction ends",
                hint="occupy first, then begin the transaction",
            ) from exc

    def _check_commits(self, alias: str) -> None:
        # Without autocommit Django leaves it to the user to commit what `atomic()` did
        # (test_where_nothing_is_committed_nobody_would_see_it).
        connection = connections[alias]
        if not connection.in_atomic_block and not connection.get_autocommit():
            raise ConfigurationError(
                what=f"{alias} is not in autocommit: other connections would not see "
                "that the object is occupied",
                hint='remove "AUTOCOMMIT": False from DATABASES, or use another alias',
            )

    def _error(self, exc: Error, alias: str) -> BackendError:
        what = f"{self._model._meta.label} in {alias}: {exc}"
        hint = f"python manage.py migrate {self._model._meta.app_label}"
        missing = "no such" in str(exc) or "no column" in str(exc)
        if missing or isinstance(exc, ProgrammingError):
            return Unsupported(what=what, hint=hint)
        if isinstance(exc, OperationalError | InterfaceError):
            return BackendUnavailable(what=what)
        return BackendError(what=what)
