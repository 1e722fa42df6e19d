"""The steps of a row lock as plans: which statements, and what comes of them.

A plan knows no driver: it yields statements and is sent what they did, so that one text
serves drivers that block, drivers that await, and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aiorwlock_remote.core.row import state_of
from aiorwlock_remote.core.ticket import Mode

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Statement:
    """One for a driver. ``tells``: it finds rows and changes none."""

    text: str
    values: tuple[object, ...] = field(repr=False)
    tells: bool = False


@dataclass(frozen=True, slots=True)
class StatementResult:
    """What a statement did: ``count`` rows changed, ``rows`` found."""

    count: int = 0
    rows: tuple[tuple[object, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RowStep:
    """What came of a step: ``count`` rows changed, 1 if it was done.

    ``found``: mark, count and reason as they stand, if it was refused; None: no row.
    """

    count: int
    found: tuple[object, ...] | None = None

    @property
    def done(self) -> bool:
        """Whether it changed its row, and no other."""
        return self.count == 1


class RowStatements(Protocol[S_co]):
    """The published statements for one row, in whatever form they are carried out."""

    def lock(self, mode: Mode, reason: str) -> S_co:
        """RLock or WLock."""

    def unlock(self, mode: Mode, reason: str) -> S_co:
        """RUnlock or WUnlock."""

    def look(self) -> S_co:
        """Mark, count and reason."""


class LeasedRowStatements(RowStatements[S_co], Protocol[S_co]):
    """The same, and two more for a row with a column of grants."""

    def read(self) -> S_co:
        """Mark, count, reason, grants; and the time there, see ``micros_at``."""

    def swap(self, old: Sequence[object], new: Sequence[object]) -> S_co:
        """Put mark, count, reason and grants there if mark, count and grants are so."""


Plan = Generator[S, StatementResult, T]
"""Statements one after the other; what each did is sent in. It never raises itself."""


def run_plan_blocking(plan: Plan[S, T], run: Callable[[S], StatementResult]) -> T:
    """What the plan makes of what its statements did, by a driver that blocks."""
    try:
        statement = next(plan)
        while True:
            statement = plan.send(run(statement))
    except StopIteration as done:
        value: T = done.value
        return value


def noting(plan: Plan[S, T], changed: Callable[[], object]) -> Plan[S, T]:
    """The same; ``changed()`` is called when one of its statements changed rows."""
    try:
        statement = next(plan)
        while True:
            ran = yield statement
            if ran.count:
                changed()
            statement = plan.send(ran)
    except StopIteration as done:
        value: T = done.value
        return value


def locking(
    words: RowStatements[S],
    mode: Mode,
    reason: str,
    *,
    check: bool = False,
    alone: bool = False,
) -> Plan[S, RowStep]:
    """Take it; where that changed several rows, they are changed back.

    ``check``: look whether the mark stands there now. A column that is too narrow or no
    text takes anything, where a database is not strict.

    ``alone``: look before whether it is one row. If there are more, and somebody else
    has locked one of them, changing ours back would change that one, too.
    """
    if alone:
        ran = yield words.look()
        if len(ran.rows) > 1:
            return RowStep(len(ran.rows), ran.rows[0])
    ran = yield words.lock(mode, reason)
    if ran.count > 1:
        yield words.unlock(mode, reason)
    if ran.count == 1 and check:
        found = next(iter((yield words.look()).rows), None)
        state = None if found is None else state_of(found)
        if state is None:
            yield words.unlock(mode, reason)
            return RowStep(0, found)
    return (yield from _told(words, ran.count))


def unlocking(words: RowStatements[S], mode: Mode, reason: str) -> Plan[S, RowStep]:
    """Give it back."""
    ran = yield words.unlock(mode, reason)
    return (yield from _told(words, ran.count))


def looking(words: RowStatements[S]) -> Plan[S, RowStep]:
    """What stands there."""
    return (yield from _told(words, 0))


def _told(words: RowStatements[S], count: int) -> Plan[S, RowStep]:
    if count:
        return RowStep(count)
    ran = yield words.look()
    return RowStep(
        len(ran.rows) if len(ran.rows) > 1 else 0, next(iter(ran.rows), None)
    )
