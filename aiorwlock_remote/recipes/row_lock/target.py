"""What is wrong with a row or its table, and the statement that puts it right.

The published statements as SQL, for drivers; see ``row.sql``.

Two ways to hold a row: as published, for ever; or with a lease, by a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar, final
from uuid import UUID

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.cas.table_rows import micros_of
from aiorwlock_remote.core.row import (
    LeasedRowStatements,
    Plan,
    RowKey,
    RowState,
    RowStatements,
    RowStep,
    RowTable,
    Statement,
    lock_plan,
    parse_row_state,
    table_name_parts,
    unlock_plan,
)
from aiorwlock_remote.core.row_dialects import Dialect
from aiorwlock_remote.core.row_grants import (
    MAX_GRANTS_TEXT,
    Decide,
    ReleaseRow,
    RenewRow,
    RowDecision,
    RowGrant,
    RowGrants,
    TakeRow,
    dump_row_grants,
    load_row_grants,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
)


@final
class RowSql:
    """The published statements for one row, as SQL."""

    def __init__(self, table: RowTable, key: RowKey, dialect: Dialect) -> None:
        """``dialect``: of the database that carries them out."""
        self._id = str(key) if isinstance(key, UUID) and not dialect.uuids else key
        self.table: str = ".".join(map(dialect.quoted, table_name_parts(table.name)))
        names = {
            "table": self.table,
            **{
                name: dialect.quoted(getattr(table, name))
                for name in ("key", "mark", "count", "reason", "grants")
            },
            "and_": f" AND {dialect.condition}" if dialect.condition else "",
            "now": dialect.now,
            **{f"b{number}": dialect.bind.format(number) for number in range(1, 9)},
        }
        freed = dialect.freed.format_map(names)
        self._names: Mapping[str, str] = {**names, "freed": freed}
        self._dialect = dialect
        self.grants: str = table.grants
        self.key: str = table.key
        lock = table.mark, table.count, table.reason
        self.columns: tuple[str, ...] = (table.key, *lock)

    def lock(self, mode: Mode, reason: str) -> Statement:
        """RLock or WLock."""
        return Statement(self._text(f"{mode}_lock"), (reason, self._id))

    def unlock(self, mode: Mode, reason: str) -> Statement:
        """RUnlock or WUnlock."""
        return Statement(self._text(f"{mode}_unlock"), (reason, self._id))

    def look(self) -> Statement:
        """Mark, count and reason."""
        return Statement(self._text("look"), (self._id,), tells=True)

    def read(self) -> Statement:
        """Mark, count, reason, grants; and the time there."""
        return Statement(self._text("read"), (self._id,), tells=True)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> Statement:
        """Put these there in place of those."""
        mark, count, _, grants = old
        values = (*new, self._id, mark, count)
        if grants is None:
            return Statement(self._text("swap_first"), values)
        return Statement(self._text("swap"), (*values, grants))

    @property
    def needs(self) -> str:
        """What gives the table its columns."""
        return "; ".join(map(self._named, self._dialect.alters))

    @property
    def leases(self) -> str:
        """What gives the table the column of grants."""
        return self._named(self._dialect.leases)

    @property
    def grant(self) -> str:
        """What gives a user the rights."""
        return self._named(self._dialect.grant)

    @property
    def repair(self) -> str:
        """What makes the row one that nobody holds."""
        return self._text("repair", literal=self._literal())

    @property
    def forget(self) -> str:
        """What makes the row one without grants."""
        return self._text("forget", literal=self._literal())

    @property
    def insert(self) -> str:
        """What makes the row."""
        return self._text("insert")

    def _literal(self) -> str:
        literal = str(self._id)
        if isinstance(self._id, int):
            return literal
        return "'" + literal.replace("'", "''") + "'"

    def _text(self, name: str, **more: str) -> str:
        text = load_statements("aiorwlock_remote.recipes", "row.sql")[name]
        return " ".join(self._named(text, **more).split())

    def _named(self, text: str, **more: str) -> str:
        return text.format_map({**self._names, **more})


S = TypeVar("S")

MAX_SWAPS = 8
"""Attempts to change a row without a pause, while others change it, too."""


@dataclass(frozen=True, slots=True)
class RowAttempt:
    """Who wants what. ``ticket``: known to nobody else."""

    mode: Mode
    reason: str
    ticket: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What came of a step. ``grant``: a lease that is held now.

    ``held``: whether what was given back or kept was held until then. ``again``: others
    were faster each time; nothing was done. ``damaged``: the list of grants is none.
    """

    step: RowStep
    held: bool
    grant: RowGrant | None = None
    again: bool = False
    damaged: bool = False


class PublishedStrategy(Generic[S]):
    """By the four published UPDATEs."""

    lease: float | None = None

    def __init__(self, words: RowStatements[S]) -> None:
        self._words = words

    def take(self, attempt: RowAttempt, *, check: bool) -> Plan[S, RowOutcome]:
        """RLock or WLock."""
        mode, reason = attempt.mode, attempt.reason
        plan = lock_plan(self._words, mode, reason, check=check, alone=check)
        step = yield from plan
        return RowOutcome(step, step.done)

    def give(self, attempt: RowAttempt, reason: str) -> Plan[S, RowOutcome]:
        """RUnlock or WUnlock."""
        step = yield from unlock_plan(self._words, attempt.mode, reason)
        return RowOutcome(step, step.done)


class LeasedStrategy(Generic[S]):
    """By reading the row and swapping it, grants and all."""

    def __init__(self, words: LeasedRowStatements[S], lease: float) -> None:
        """``lease``: seconds."""
        self._words = words
        self.lease: float | None = lease
        self._lease = micros(lease)

    def take(self, attempt: RowAttempt, *, check: bool) -> Plan[S, RowOutcome]:
        """Take it, unless the ticket has it already."""
        decide = TakeRow(attempt.ticket, attempt.mode, self._lease, attempt.reason)
        got = yield from self._swapped(decide)
        if check and got.grant is not None and got.step.done:
            ran = yield self._words.read()
            found = next(iter(ran.rows), None)
            if found is None or parse_row_state(found[:3]) is None:
                return RowOutcome(
                    RowStep(0, None if found is None else found[:3]), held=False
                )
        return got

    def give(self, attempt: RowAttempt, reason: str) -> Plan[S, RowOutcome]:
        """Give back what the ticket has."""
        return (yield from self._swapped(ReleaseRow(attempt.ticket, reason)))

    def keep(self, attempt: RowAttempt) -> Plan[S, RowOutcome]:
        """Renew what the ticket has."""
        return (yield from self._swapped(RenewRow(attempt.ticket, self._lease)))

    def list(self) -> Plan[S, tuple[tuple[RowGrant, ...], RowOutcome]]:
        """The grants that stand in the row, expired ones too."""
        grants: tuple[RowGrant, ...] = ()

        def listed(ledger: RowGrants, _now: int) -> RowDecision:
            nonlocal grants
            grants = ledger.valid().grants
            return RowDecision(None, ledger.state, held=True)

        got = yield from self._swapped(listed)
        return grants, got

    def _swapped(self, decide: Decide) -> Plan[S, RowOutcome]:
        """What is decided about the row, put there if nobody else changes it."""
        found: tuple[object, ...] = ()
        for _ in range(MAX_SWAPS):
            ran = yield self._words.read()
            if len(ran.rows) != 1:
                one = next(iter(ran.rows), None)
                return RowOutcome(RowStep(len(ran.rows), one and one[:3]), held=False)
            *read, now = ran.rows[0]
            found = tuple(read[:3])
            state = parse_row_state(found)
            ledger = None if state is None else load_row_grants(state, _text(read[3]))
            if ledger is None:
                bad = state is not None
                return RowOutcome(RowStep(0, found), held=False, damaged=bad)
            told = decide(ledger, _micros(now))
            change = told.change
            if change is None:
                return RowOutcome(RowStep(int(told.held), found), told.held, told.grant)
            text = dump_row_grants(change, random_id().hex())
            if len(text) > MAX_GRANTS_TEXT:  # as if a writer were there
                return RowOutcome(RowStep(0, found), held=False)
            state = change.state
            new = state.mark, state.readers, state.reason, text
            ran = yield self._words.swap(read, new)
            if ran.count == 1:
                held = told.held or told.grant is not None
                return RowOutcome(RowStep(1), held, told.grant)
        return RowOutcome(RowStep(0, found), held=False, again=True)


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def _micros(now: object) -> int:
    return micros_of(now) if isinstance(now, str) else int(now)  # type: ignore[call-overload]


Strategy = PublishedStrategy[S] | LeasedStrategy[S]


T = TypeVar("T")

Watch = Callable[[Callable[[], object]], Callable[[], object]]
"""Rings when the row may be free, until what it returns is called."""

RowIdentity = tuple[str, ...]

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
    way: Strategy[S]
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
        way: Strategy[T] = (
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
    def kind(self) -> RowIdentity:
        """What is known of one such row is known of all."""
        return self.table, *self.columns

    @property
    def identity(self) -> RowIdentity:
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
        state = parse_row_state(step.found)
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
