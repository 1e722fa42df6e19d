"""Two ways to hold a row: as published, for ever; or with a lease, by a ticket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aiorwlock_remote._util.random_ids import random_id
from aiorwlock_remote.cas.table_rows import micros_of
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.row import state_of
from aiorwlock_remote.core.row_grants import (
    MAX_TEXT,
    Decide,
    ReleaseRow,
    RenewRow,
    RowDecision,
    RowGrant,
    RowGrants,
    TakeRow,
    ledger_of,
    text_of,
)
from aiorwlock_remote.core.row_plans import (
    LeasedRowStatements,
    Plan,
    RowStatements,
    RowStep,
    locking,
    unlocking,
)
from aiorwlock_remote.core.ticket import Mode

S = TypeVar("S")

SWAPS = 8
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
        plan = locking(self._words, mode, reason, check=check, alone=check)
        step = yield from plan
        return RowOutcome(step, step.done)

    def give(self, attempt: RowAttempt, reason: str) -> Plan[S, RowOutcome]:
        """RUnlock or WUnlock."""
        step = yield from unlocking(self._words, attempt.mode, reason)
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
            if found is None or state_of(found[:3]) is None:
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
        for _ in range(SWAPS):
            ran = yield self._words.read()
            if len(ran.rows) != 1:
                one = next(iter(ran.rows), None)
                return RowOutcome(RowStep(len(ran.rows), one and one[:3]), held=False)
            *read, now = ran.rows[0]
            found = tuple(read[:3])
            state = state_of(found)
            ledger = None if state is None else ledger_of(state, _text(read[3]))
            if ledger is None:
                bad = state is not None
                return RowOutcome(RowStep(0, found), held=False, damaged=bad)
            told = decide(ledger, _micros(now))
            change = told.change
            if change is None:
                return RowOutcome(RowStep(int(told.held), found), told.held, told.grant)
            text = text_of(change, random_id().hex())
            if len(text) > MAX_TEXT:  # as if a writer were there
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


Way = PublishedStrategy[S] | LeasedStrategy[S]
