"""A row that is locked: its SQL, its lock with or without a lease, and its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, final
from uuid import UUID

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote._util.statements import load_statements
from aiorwlock_remote.cas.table_cas import micros_of
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.row import (
    LeasedRowStatements,
    Plan,
    RowKey,
    RowResource,
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
from aiorwlock_remote.core.ticket import Mode, holder_of
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.errors import (
    AcquireUncertain,
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
    LockError,
    Unsupported,
)
from aiorwlock_remote.logs import log_event

S = TypeVar("S")
T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.row_lock")

MAX_SWAPS = 8
"""Attempts to change a leased row without a pause while other programs change it."""

Watch = Callable[[Callable[[], object]], Callable[[], object]]
"""``watch(wake)`` calls ``wake()`` when the row may be free; returns what ends it."""

RowKind = tuple[str, str]
"""Names of the table, and of the lock's columns, of a row."""


@final
class RowSql:
    """SQL texts of the published statements for one row (see ``row.sql``).

    The methods build statements to execute. The properties and ``repair`` are for error
    hints: what an administrator runs if the table or row cannot be locked as it is.
    """

    def __init__(self, table: RowTable, key: RowKey, dialect: Dialect) -> None:
        self._id = str(key) if isinstance(key, UUID) and not dialect.uuids else key
        self.name: str = table.name
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
        return Statement(self._text(f"{mode}_lock"), (reason, self._id))

    def unlock(self, mode: Mode, reason: str) -> Statement:
        return Statement(self._text(f"{mode}_unlock"), (reason, self._id))

    def look(self) -> Statement:
        return Statement(self._text("look"), (self._id,), only_reads=True)

    def read(self) -> Statement:
        return Statement(self._text("read"), (self._id,), only_reads=True)

    def swap(self, old: Sequence[object], new: Sequence[object]) -> Statement:
        mark, count, _, grants = old
        values = (*new, self._id, mark, count)
        if grants is None:
            return Statement(self._text("swap_first"), values)
        return Statement(self._text("swap"), (*values, grants))

    @property
    def add_columns(self) -> str:
        """ALTER TABLE statements that add the three columns of the lock."""
        return "; ".join(map(self._named, self._dialect.alters))

    @property
    def add_grants_column(self) -> str:
        """The ALTER TABLE statement that adds the column for leases."""
        return self._named(self._dialect.leases)

    @property
    def grant_rights(self) -> str:
        """The GRANT statement that a database user needs for row locks."""
        return self._named(self._dialect.grant)

    def repair(self, name: str) -> str:
        """Return SQL with which an administrator repairs the row, for an error's hint.

        ``name``: ``free_row``, ``clear_grants`` or ``insert_row``.
        """
        return self._text(name, literal=self._literal())

    def _literal(self) -> str:
        # For hints only; statements that are executed bind their values.
        literal = str(self._id)
        if isinstance(self._id, int):
            return literal
        return "'" + literal.replace("'", "''") + "'"

    def _text(self, name: str, **more: str) -> str:
        text = load_statements("aiorwlock_remote.recipes", "row.sql")[name]
        return " ".join(self._named(text, **more).split())

    def _named(self, text: str, **more: str) -> str:
        return text.format_map({**self._names, **more})


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The outcome of one request for a row lock.

    Args:
        step: How many rows changed, and what the row contains if none did.
        held: For an acquire: True if the lock was granted. For a release or a renewal:
            True if the lock was held until then.
        grant: The grant that the request obtained or renewed; None if there is none.
        again: True if nothing was done, as other programs changed the row at each try.
        damaged: The column of grants contains text that this library did not write.
    """

    step: RowStep
    held: bool
    grant: RowGrant | None = None
    again: bool = False
    damaged: bool = False


class PublishedStrategy(Generic[S]):
    """Makes plans (generators of SQL statements) that lock a row without a lease."""

    lease: float | None = None

    def __init__(self, statements: RowStatements[S]) -> None:
        self.statements = statements

    def take(self, attempt: RowAttempt[S], *, check: bool) -> Plan[S, RowOutcome]:
        """Return a plan that locks the row.

        ``check``: it also reads the row back, and unlocks it if the mark was truncated.
        """
        mode, reason = attempt.mode, attempt.reason
        plan = lock_plan(self.statements, mode, reason, check=check, alone=check)
        step = yield from plan
        return RowOutcome(step, step.done)

    def give(self, attempt: RowAttempt[S], reason: str) -> Plan[S, RowOutcome]:
        """Return a plan that unlocks the row, and stores ``reason`` in it for people.

        The row must still be locked in the attempt's mode.
        """
        step = yield from unlock_plan(self.statements, attempt.mode, reason)
        return RowOutcome(step, step.done)


class LeasedStrategy(Generic[S]):
    """Makes plans (generators of SQL) that lock a row with a lease of ``lease`` s.

    Each plan reads the row and changes all of its lock columns by compare-and-swap, so
    a repeated request finds its own ticket and does nothing twice.
    """

    def __init__(self, statements: LeasedRowStatements[S], lease: float) -> None:
        self.statements = statements
        self.lease: float | None = lease
        self._lease = micros(lease)

    def take(self, attempt: RowAttempt[S], *, check: bool) -> Plan[S, RowOutcome]:
        decide = TakeRow(attempt.ticket, attempt.mode, self._lease, attempt.reason)
        got = yield from self._swapped(decide)
        if check and got.grant is not None and got.step.done:
            # A database that is not strict cuts a mark to the width of its column: the
            # swap succeeds, and other programs see no lock.
            ran = yield self.statements.read()
            found = next(iter(ran.rows), None)
            if found is None or parse_row_state(found[:3]) is None:
                return RowOutcome(
                    RowStep(0, None if found is None else found[:3]), held=False
                )
        return got

    def give(self, attempt: RowAttempt[S], reason: str) -> Plan[S, RowOutcome]:
        return (yield from self._swapped(ReleaseRow(attempt.ticket, reason)))

    def keep(self, ticket: str) -> Plan[S, RowOutcome]:
        """Return a plan that renews the lease of ``ticket``, if the row has it."""
        return (yield from self._swapped(RenewRow(ticket, self._lease)))

    def list(self) -> Plan[S, tuple[tuple[RowGrant, ...], RowOutcome]]:
        """Return a plan that reads the grants in the row, expired ones too."""
        grants: tuple[RowGrant, ...] = ()

        def listed(ledger: RowGrants, _now: int) -> RowDecision:
            nonlocal grants
            grants = ledger.valid().grants
            return RowDecision(None, ledger.state, held=True)

        got = yield from self._swapped(listed)
        return grants, got

    def _swapped(self, decide: Decide) -> Plan[S, RowOutcome]:
        found: tuple[object, ...] = ()
        for _ in range(MAX_SWAPS):
            ran = yield self.statements.read()
            if len(ran.rows) != 1:
                one = next(iter(ran.rows), None)
                return RowOutcome(RowStep(len(ran.rows), one and one[:3]), held=False)
            *read, now = ran.rows[0]
            found = tuple(read[:3])
            state = parse_row_state(found)
            # Text that this library did not write is never overwritten
            # (test_damaged_grants).
            ledger = None if state is None else load_row_grants(state, _text(read[3]))
            if ledger is None:
                bad = state is not None
                return RowOutcome(RowStep(0, found), held=False, damaged=bad)
            decision = decide(ledger, _micros(now))
            change, held = decision.change, decision.held
            if change is None:
                return RowOutcome(RowStep(int(held), found), held, decision.grant)
            # The nonce makes each text unique: a swap that arrives late finds another
            # one and does nothing.
            text = dump_row_grants(change, random_id().hex())
            if len(text) > MAX_GRANTS_TEXT:
                # One reader more than the column can list: refused as if a writer held
                # the row, so it waits for one of them to leave.
                return RowOutcome(RowStep(0, found), held=False)
            state = change.state
            new = state.mark, state.readers, state.reason, text
            ran = yield self.statements.swap(read, new)
            if ran.count == 1:
                held = held or decision.grant is not None
                return RowOutcome(RowStep(1), held, decision.grant)
        return RowOutcome(RowStep(0, found), held=False, again=True)


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def _micros(now: object) -> int:
    return micros_of(now) if isinstance(now, str) else int(now)  # type: ignore[call-overload]


Strategy = PublishedStrategy[S] | LeasedStrategy[S]


class RowTarget(RowResource, Generic[S]):
    """A row to be locked: its names, the SQL that locks it, and its error messages.

    Attributes:
        sql: Names and statements of the row.
        strategy: Makes the plans (generators of SQL), with or without a lease.
        watch: Reports releases by other processes; None: the store cannot.
    """

    # In the instance's dictionary, because a tuple has no slots; and so no part of
    # comparisons.
    sql: RowSql
    strategy: Strategy[S]
    watch: Watch | None

    @staticmethod
    def of(
        sql: RowSql,
        key: str,
        statements: LeasedRowStatements[T],
        lease: float | None,
        watch: Watch | None = None,
    ) -> RowTarget[T]:
        """Return the target of the row whose key has the text ``key``.

        ``sql``: its names and error hints; ``statements``: the SQL that is executed;
        ``lease``: seconds, or None for no lease; ``watch``: reports releases.
        """
        row: RowTarget[T] = RowTarget(sql.name, key, " ".join(sql.columns))
        row.sql, row.watch = sql, watch
        row.strategy = (
            PublishedStrategy(statements)
            if lease is None
            else LeasedStrategy(statements, lease)
        )
        return row

    @property
    def row_kind(self) -> RowKind:
        """Name of the table and of the lock's columns, without the row's key."""
        return self.type, self.kind

    def renewal_plan(self, ticket: str) -> Plan[S, Grant | NotHeld | BackendError]:
        assert isinstance(self.strategy, LeasedStrategy)
        got = yield from self.strategy.keep(ticket)
        if got.grant is not None:
            found = got.grant
            return Grant(ticket, found.mode, found.fence, 0, found.expires)
        return self.outrun() if got.again else NotHeld("forced")

    def outrun(self) -> BackendUnavailable:
        """Return the error of a request before which others always changed the row."""
        what = f"{self.label}: other programs changed the row at each attempt"
        return BackendUnavailable(what=what, nothing_done=True)

    def found(self, got: RowOutcome) -> RowState:
        """Return the state that refused a request; ``BadRecord`` for damaged grants."""
        if got.damaged:
            raise BadRecord(
                what=f"{self.label}: the text in column {self.sql.grants} was not "
                "written by this library",
                hint=self.sql.repair("clear_grants"),
            )
        return self.state(got.step)

    def state(self, step: RowStep) -> RowState:
        """Return mark, readers and reason that a request found in the row.

        Raises:
            ConfigurationError: no row has this key, or several rows have it.
            BadRecord: mark and count contradict each other.
        """
        if step.count > 1:
            raise ConfigurationError(
                what=f"{self.label}: {step.count} rows have this key",
                hint=f"column {self.sql.key} must be unique",
            )
        if step.found is None:
            raise ConfigurationError(
                what=f"{self.label}: there is no such row", hint=self._missing
            )
        state = parse_row_state(step.found)
        if state is None:
            mark, readers, _ = step.found
            raise BadRecord(
                what=f"{self.label}: mark {mark!r} with count {readers!r} is not a "
                "state of a row lock",
                hint=self.sql.repair("free_row"),
            )
        return state

    @property
    def _missing(self) -> str:
        # Insert the row, or compare the types of key and column.
        insert = self.sql.repair("insert_row")
        if self.id.removeprefix("-").isdigit():
            return insert
        return f"{insert}; if column {self.sql.key} is a number, pass the key as one"

    @contextmanager
    def explaining(self) -> Generator[None, None, None]:
        """Context that replaces a store's error by what ``explained`` returns."""
        try:
            yield
        except LockError as exc:
            raise self.explained(exc) from exc.__cause__

    def explained(self, exc: LockError) -> LockError:
        """Return a store's error with a hint that names the user's own table.

        A store knows only the library's tables: its hints would name columns and GRANTs
        that have nothing to do with the user's table (test_a_table_that_is_not_fit).
        """
        if isinstance(exc, ConfigurationError) and exc.refused == "value":
            hint = (
                f"compare {quoted(self.id)} with the type of the key column "
                f"{self.sql.key}, and the length of the reason with its column"
            )
            what = exc.what if self.label in exc.what else f"{self.label}: {exc.what}"
            return ConfigurationError(what=what, hint=hint)
        if isinstance(exc, Unsupported) and exc.lacks:
            return replace(exc, hint=self._hint(exc))
        return exc

    def release_error(self, mode: Mode, error: BaseException) -> BaseException:
        """Return the error of a request to release the row, with hints for people."""
        if not isinstance(error, LockError):
            return error
        explained = self.explained(error)
        if self.strategy.lease is None and isinstance(explained, BackendUnavailable):
            if explained.nothing_done:
                rest = "not given back"
                hint = "repeated in the background; if this process ends before, run "
            else:
                rest = "perhaps not given back"
                hint = "this process does not repeat it; if no other holder is left, "
            explained = BackendUnavailable(
                what=f"{self.label} ({mode}) was {rest}: {explained.what}",
                hint=hint + self.sql.repair("free_row"),
                nothing_done=explained.nothing_done,
            )
        explained.__cause__ = error.__cause__
        return explained

    def unclear(self, mode: Mode, exc: BackendUnavailable) -> LockError:
        """Return ``AcquireUncertain`` if the row may be locked now, else ``exc``.

        ``exc``: the error of a request to lock the row in ``mode``.
        """
        if exc.nothing_done:
            return exc
        holder = f"a {mode} lock of ours"
        return AcquireUncertain(
            resource=self.label, holder=holder, lease=self.strategy.lease
        )

    def _hint(self, exc: Unsupported) -> str:
        sql = self.sql
        if exc.lacks == "rights":
            return sql.grant_rights
        if self.strategy.lease is None:
            return sql.add_columns
        missing = sql.grants.casefold() in exc.what.casefold()
        alter = sql.add_grants_column
        return alter if missing else f"{sql.add_columns}; {alter}"


@dataclass(frozen=True, slots=True)
class RowAttempt(Generic[S]):
    """One attempt to lock a row.

    Args:
        row: The row.
        mode: ``read``: together with other readers; ``write``: alone.
        reason: Stored in the row.
        ticket: A random secret that identifies the attempt's grant in the row.
        until: Local monotonic time at which the attempt ends; None: never.
    """

    row: RowTarget[S]
    mode: Mode
    reason: str
    ticket: str = field(repr=False)
    until: float | None = None

    def log_debug(
        self, event: str, *, fence: int | None = None, cause: object = None
    ) -> None:
        """Log an event of this attempt at level DEBUG, with its public holder id."""
        if log.isEnabledFor(logging.DEBUG):
            label, holder = self.row.label, holder_of(self.ticket)
            more: dict[str, Any] = {"mode": self.mode, "fence": fence, "cause": cause}
            more = {key: value for key, value in more.items() if value is not None}
            log_event(log, event, logging.DEBUG, resource=label, holder=holder, **more)
