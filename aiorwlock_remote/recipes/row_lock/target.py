"""What is wrong with a row or its table, and the statement that puts it right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from aiorwlock_remote.core.row import RowState, state_of
from aiorwlock_remote.core.row_plans import LeasedRowStatements, RowStatements, RowStep
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
)
from aiorwlock_remote.recipes.row_lock.sql import RowSql
from aiorwlock_remote.recipes.row_lock.strategies import (
    LeasedStrategy,
    PublishedStrategy,
    RowOutcome,
    Way,
)

S = TypeVar("S")
T = TypeVar("T")

Watch = Callable[[Callable[[], object]], Callable[[], object]]
"""Rings when the row may be free, until what it returns is called."""

Kind = tuple[str, ...]

_OURS = ("rwlock schema ", "mutex_locks", "its tables were")
"""In a store's hints that are about the library's own tables."""
_NAMES = ("", "another name for the resource")
_TOO_LONG = "makes it: widen it"
"""In a store's hints that are about the library's own names and columns."""


@dataclass(frozen=True, slots=True)
class RepairStatements:
    """Statements to be run by whoever may.

    ``needs``: gives the table its columns. ``grant``: gives a user the rights.
    ``repair``: frees the row. ``insert``: makes it. ``forget``: takes away its grants.
    ``key``: the column of the key. ``leases``: the column of grants, and what gives the
    table that.
    """

    needs: str
    grant: str
    repair: str
    insert: str
    forget: str
    key: str
    leases: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RowTarget(Generic[S]):
    """A row: how it is asked for and held, and what to run if that is of no use.

    ``columns``: of the key and of the lock: by others it is another lock. ``watch``: if
    the store is told of it by those who give it back.
    """

    table: str
    columns: tuple[str, ...]
    key: str
    words: RowStatements[S]
    way: Way[S]
    hints: RepairStatements
    watch: Watch | None = None

    @staticmethod
    def of(
        table: str,
        key: str,
        words: LeasedRowStatements[T],
        texts: RowSql,
        lease: float | None,
        watch: Watch | None = None,
    ) -> RowTarget[T]:
        """One with the hints that these texts give."""
        way: Way[T] = (
            PublishedStrategy(words) if lease is None else LeasedStrategy(words, lease)
        )
        row = texts.repair, texts.insert, texts.forget, texts.key
        leases = None if lease is None else (texts.grants, texts.leases)
        hints = RepairStatements(texts.needs, texts.grant, *row, leases)
        return RowTarget(table, texts.columns, key, words, way, hints, watch)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.table}/{self.key}"

    @property
    def kind(self) -> Kind:
        """What is known of one such row is known of all."""
        return self.table, *self.columns

    @property
    def identity(self) -> Kind:
        """Of two locks that exclude each other it is the same."""
        return *self.kind, self.key

    def found(self, got: RowOutcome) -> RowState:
        """What is in the way.

        Raises:
            ConfigurationError, BadRecord: as ``state``.
        """
        if got.damaged:
            raise BadRecord(
                what=f"{self.label}: what stands there as grants is not ours",
                hint=self.hints.forget,
            )
        return self.state(got.step)

    def state(self, step: RowStep) -> RowState:
        """What was found.

        Raises:
            ConfigurationError: no row, or several.
            BadRecord: what no lock can have made.
        """
        if step.count > 1:
            raise ConfigurationError(
                what=f"{self.label}: {step.count} rows have this key",
                hint=f"column {self.hints.key} must be unique",
            )
        if step.found is None:
            raise ConfigurationError(
                what=f"{self.label}: there is no such row", hint=self._missing
            )
        state = state_of(step.found)
        if state is None:
            mark, readers, _ = step.found
            raise BadRecord(
                what=f"{self.label}: mark {mark!r} with count {readers!r} is not what "
                "a lock leaves behind",
                hint=self.hints.repair,
            )
        return state

    @property
    def _missing(self) -> str:
        """What makes the row; or the key is of another type than its column."""
        if self.key.removeprefix("-").isdigit():
            return self.hints.insert
        return f"{self.hints.insert}; is {self.hints.key} a number, and the key none?"

    def explained(self, exc: LockError) -> LockError:
        """A store's error, with what there is to run for a row lock."""
        if isinstance(exc, ConfigurationError) and (
            exc.hint in _NAMES or _TOO_LONG in exc.hint
        ):
            hint = (
                f"is {quoted(self.key)} of the type of the key's column "
                f"{self.hints.key}, and the reason not too long for its own?"
            )
            what = exc.what if self.label in exc.what else f"{self.label}: {exc.what}"
            return ConfigurationError(what=what, hint=hint)
        if isinstance(exc, Unsupported) and any(text in exc.hint for text in _OURS):
            return replace(exc, hint=self._hint(exc))
        return exc

    def unclear(self, mode: Mode, exc: BackendUnavailable) -> LockError:
        """A request failed: whether it was carried out may be unknown."""
        if exc.nothing_done:
            return exc
        holder = f"a {mode} lock of ours"
        return AcquireUncertain(
            resource=self.label, holder=holder, lease=self.way.lease
        )

    def _hint(self, exc: Unsupported) -> str:
        hints = self.hints
        if exc.hint.startswith("GRANT"):
            return hints.grant
        if hints.leases is None:
            return hints.needs
        column, alter = hints.leases
        missing = column.casefold() in exc.what.casefold()
        return alter if missing else f"{hints.needs}; {alter}"
