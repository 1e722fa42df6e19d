"""A readers-writer lock in the resource's own row: its columns, states and steps.

The published rules, each ONE conditional UPDATE; no row changed means refused:

=======  =====================================  ================================
step     demands                                sets
=======  =====================================  ================================
RLock    ``Unlock``, or ``ReadLock``            ``ReadLock``, count + 1
RUnlock  ``ReadLock`` and count > 0             count - 1, ``Unlock`` at 0
WLock    ``Unlock``                             ``WriteLock``
WUnlock  ``WriteLock``                          ``Unlock``
=======  =====================================  ================================

Each step stores a reason. A row that these steps cannot have made (no mark, another
word, a count that does not fit the mark) is refused: a step on a damaged row could
leave a lock without a holder that no client ever gets.

Steps are plans: a plan yields statements and is sent their results, so that the same
code serves drivers that block, drivers that await, and tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar
from uuid import UUID

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import check_str, check_text, quoted
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import value
from aiorwlock_remote.errors import ConfigurationError

UNLOCK, READ_LOCK, WRITE_LOCK = "Unlock", "ReadLock", "WriteLock"
MARKS = (UNLOCK, READ_LOCK, WRITE_LOCK)
# Hint of errors in which the database refused a step.
CONSTRAINT_HINT = "a constraint of the table refuses what a lock writes there"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
# Signed or not: MariaDB has both.
_INT64 = range(-(2**63), 2**64)
RowKey = int | str | UUID


@value
class RowTable:
    """Name of a user's table (``schema.table`` or ``table``) and of columns in it.

    ``key`` identifies a row; ``mark``, ``count`` and ``reason`` have the state of the
    row's lock; ``grants`` has its leases.
    """

    name: str
    key: str = "id"
    mark: str = "lock_mark"
    count: str = "read_lock_count"
    reason: str = "lock_reason"
    grants: str = "lock_grants"

    def __post_init__(self) -> None:
        # Names become part of statements: anything but a plain identifier would be SQL.
        columns: tuple[object, ...]
        columns = (self.key, self.mark, self.count, self.reason, self.grants)
        names: tuple[object, ...] = (*table_name_parts(self.name), *columns)
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigurationError(
                    what=f"{quoted(name)} is not a plain name of a table or column",
                    hint="letters, digits, _ and $; no digit first; at most 63",
                )
        if len({str(name).casefold() for name in columns}) < len(columns):
            raise ConfigurationError(what=f"{self.name}: two columns have one name")


def table_name_parts(table: str) -> tuple[str, ...]:
    """Return the parts of a table's name: the schema if there is one, and the name."""
    parts = tuple(check_str("a table's name", table).split("."))
    if len(parts) > 2:
        raise ConfigurationError(
            what=f"table {quoted(table)}: at most one schema and a dot"
        )
    return parts


def check_key(key: RowKey) -> RowKey:
    """Return ``key`` if it may identify a row, else raise ``ConfigurationError``."""
    if isinstance(key, bool) or not isinstance(key, int | str | UUID):
        raise ConfigurationError(
            what=f"a row's key must be int, str or UUID, not {type(key).__name__}"
        )
    if isinstance(key, int) and int(key) not in _INT64:
        raise ConfigurationError(what="a row's key is an int of more than 64 bits")
    if isinstance(key, str):
        check_text("a row's key", key)
        if not key:
            raise ConfigurationError(what="a row's key is empty")
    return key


@value
class RowState:
    """State of a row: its lock mark, the number of readers, the last step's reason."""

    mark: str
    readers: int
    reason: str = ""

    def __str__(self) -> str:
        many = f" by {self.readers}" if self.mark == READ_LOCK else ""
        return f"{self.mark}{many}" + (f": {self.reason}" if self.reason else "")


def parse_row_state(found: tuple[object, ...]) -> RowState | None:
    """Return the state in a row's (mark, count, reason); None if these contradict."""
    mark, count, reason = found
    # A CHAR column pads its text, and some collations compare without case.
    text = mark.rstrip() if isinstance(mark, str) else ""
    known = next((m for m in MARKS if m.casefold() == text.casefold()), None)
    readers = _whole(count)
    if known is None or readers is None or readers < 0:
        return None
    if (readers > 0) != (known == READ_LOCK):
        return None
    return RowState(known, readers, "" if reason is None else str(reason))


def _whole(count: object) -> int | None:
    # A NUMBER of Oracle or a NUMERIC may come as a Decimal or a float.
    if isinstance(count, bool | str | bytes) or count is None:
        return None
    try:
        number = int(count)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number == count else None


S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


@value
class Statement:
    """An SQL statement and its parameters. ``only_reads``: it changes nothing."""

    text: str
    values: tuple[object, ...] = field(repr=False)
    only_reads: bool = False


@value
class StatementResult:
    """Result of a statement: how many rows it changed, and the rows it found."""

    count: int = 0
    rows: tuple[tuple[object, ...], ...] = ()


@value
class RowStep:
    """Result of a step on a row: how many rows it changed; 1 means that it was done.

    ``found``: mark, count and reason of the row if the step was refused; None: no row.
    """

    count: int
    found: tuple[object, ...] | None = None

    @property
    def done(self) -> bool:
        """True if the step changed its row, and no other row."""
        return self.count == 1


class RowStatements(Protocol[S_co]):
    """SQL statements of the row lock, in the form (``S_co``) that a driver takes."""

    def lock(self, mode: Mode, reason: str) -> S_co:
        """Return the statement that locks the row in a mode and stores the reason."""

    def unlock(self, mode: Mode, reason: str) -> S_co:
        """Return the statement that ends a lock of a mode and stores the reason."""

    def look(self) -> S_co:
        """Return the statement that reads mark, count and reason of the row."""


class LeasedRowStatements(RowStatements[S_co], Protocol[S_co]):
    """SQL statements for a row lock with leases: the row also has a grants column."""

    def read(self) -> S_co:
        """Return the query for mark, count, reason, grants text and database time."""

    def swap(self, old: Sequence[object], new: Sequence[object]) -> S_co:
        """Return the UPDATE to ``new`` if mark, count and grants still are ``old``."""


Plan = Generator[S, StatementResult, T]
"""Yields statements and is sent the result of each; it never raises by itself."""


class RowResource(Resource):
    """A row as a resource: ``type`` is its table, ``id`` its key, both unencoded.

    ``kind`` names the columns of the lock: two locks are equal if and only if they
    exclude each other.
    """

    @property
    def shown(self) -> tuple[str, str]:
        return self.type, self.id

    @property
    def label(self) -> str:
        return f"{self.type}/{self.id}"

    def renewal_plan(self, ticket: str) -> Plan[Any, Any]:
        """Return a plan that renews the lease of ``ticket``.

        Its result is what ``Renewer.renew`` returns for one renewal: a ``Grant``,
        ``NotHeld``, or the exception with which the renewal failed.
        """
        raise NotImplementedError


def run_plan_blocking(plan: Plan[S, T], run: Callable[[S], StatementResult]) -> T:
    """Run the statements that the generator ``plan`` yields; return its result.

    ``run(statement)`` returns a statement's result, which the generator is sent.
    """
    try:
        statement = next(plan)
        while True:
            statement = plan.send(run(statement))
    except StopIteration as done:
        value: T = done.value
        return value


def lock_plan(
    words: RowStatements[S],
    mode: Mode,
    reason: str,
    *,
    check: bool = False,
    alone: bool = False,
) -> Plan[S, RowStep]:
    """Return a generator that yields the statements to lock a row, and is sent results.

    Its result is a ``RowStep``. If the key has several rows, the lock is undone.

    Args:
        words: Makes the statements for the row.
        mode: Whether to lock for reading or writing.
        reason: Text stored in the row, for people.
        check: Whether to read the row back, to find a mark that does not fit its
            column.
        alone: Whether to check first that the key matches one row only.
    """
    # If the key matches several rows, and another program holds one of them, undoing
    # our step would undo that lock, too.
    if alone:
        ran = yield words.look()
        if len(ran.rows) > 1:
            return RowStep(len(ran.rows), ran.rows[0])
    ran = yield words.lock(mode, reason)
    if ran.count > 1:
        yield words.unlock(mode, reason)
    # A database that is not strict cuts or converts a word that does not fit its
    # column, and the row would have a mark that no step can undo.
    if ran.count == 1 and check:
        found = next(iter((yield words.look()).rows), None)
        state = None if found is None else parse_row_state(found)
        if state is None:
            yield words.unlock(mode, reason)
            return RowStep(0, found)
    return (yield from _step_result(words, ran.count))


def unlock_plan(words: RowStatements[S], mode: Mode, reason: str) -> Plan[S, RowStep]:
    """Return a generator that yields the statements to unlock a row.

    The generator is sent the results of the statements. Its result is a ``RowStep``,
    with the row as it is if it could not be unlocked.
    """
    ran = yield words.unlock(mode, reason)
    return (yield from _step_result(words, ran.count))


def look_plan(words: RowStatements[S]) -> Plan[S, RowStep]:
    """Return a generator that yields the statement to read the row, and is sent rows.

    Its result is a ``RowStep`` with the row's mark, count and reason.
    """
    return (yield from _step_result(words, 0))


def _step_result(words: RowStatements[S], count: int) -> Plan[S, RowStep]:
    if count:
        return RowStep(count)
    ran = yield words.look()
    return RowStep(
        len(ran.rows) if len(ran.rows) > 1 else 0, next(iter(ran.rows), None)
    )
