"""The statements of a row lock, and what follows from their results."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError
from aiorwlock_remote.core.row import (
    WRITE_LOCK,
    RowStep,
    RowTable,
    StatementResult,
    lock_plan,
    run_plan_blocking,
)
from aiorwlock_remote.core.ticket import Mode

Row = tuple[object, ...]


class Words:
    """Says which statement is meant."""

    def lock(self, mode: Mode, reason: str) -> str:
        return f"lock {mode} {reason}"

    def unlock(self, mode: Mode, reason: str) -> str:
        return f"unlock {mode} {reason}"

    def look(self) -> str:
        return "look"


def locked(
    count: int, *rows: Row, check: bool = False, alone: bool = False
) -> tuple[RowStep, list[str]]:
    """Return the result of a lock that changes ``count`` of these rows, and what was
    executed.
    """
    ran: list[str] = []

    def run(statement: str) -> StatementResult:
        ran.append(statement.partition(" ")[0])
        if statement == "look":
            return StatementResult(len(rows), rows)
        return StatementResult(count)

    plan = lock_plan(Words(), Mode.WRITE, "why", check=check, alone=alone)
    return run_plan_blocking(plan, run), ran


GOOD, CUT = (WRITE_LOCK, 0, "why"), ("Writ", 0, "why")


def test_a_lock_that_changed_its_row_is_done() -> None:
    assert locked(1, CUT) == (RowStep(1), ["lock"])
    assert locked(1, GOOD, check=True) == (RowStep(1), ["lock", "look"])


def test_a_mark_that_was_cut_is_undone() -> None:
    """No step could undo it later."""
    step, ran = locked(1, CUT, check=True)
    assert (step, ran) == (RowStep(0, CUT), ["lock", "look", "unlock"])


def test_a_lock_that_was_refused_tells_how_the_row_is() -> None:
    assert locked(0, GOOD, check=True) == (RowStep(0, GOOD), ["lock", "look"])
    assert locked(0) == (RowStep(0, None), ["lock", "look"])


def test_several_rows_are_not_locked() -> None:
    assert locked(2, GOOD, GOOD) == (RowStep(2), ["lock", "unlock"])
    assert locked(2, GOOD, GOOD, alone=True) == (RowStep(2, GOOD), ["look"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.b.c", "at most one schema and a dot"),
        ("a.b c", "not a plain name"),
        ("", "not a plain name"),
    ],
)
def test_names_of_tables(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        RowTable(name)
