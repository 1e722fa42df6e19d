"""A request, one beside it and one after both, in every order of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from cassandra import OperationTimedOut

from aiorwlock_remote import BackendUnavailable
from aiorwlock_remote.backends.cassandra.errands import Errand
from aiorwlock_remote.backends.cassandra.inbox import Inbox
from aiorwlock_remote.backends.cassandra.requests import Request, Rows
from aiorwlock_remote.backends.cassandra.wire import Wire
from aiorwlock_remote.pending import Pending
from tests.backends.cassandra.test_inbox import Loop

SWAP, EARLY, LATE = (
    Request(cast("Any", name), None) for name in ("swap", "early", "late")
)
APPLIED: Rows = [{"applied": True}]
REFUSED: Rows = [{"applied": False}]
OURS: Rows = [{"version": "ours"}]
OTHER: Rows = [{"version": "other"}]


class Line:
    """In the place of a ``Wire``: the test gives the answers."""

    where = "somewhere"

    def __init__(self) -> None:
        self.sent: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def send(
        self,
        request: Request,
        answered: Callable[..., Any],
        failed: Callable[..., Any],
    ) -> None:
        self.sent[str(request.statement)] = answered, failed

    def answer(self, name: str, rows: Rows) -> None:
        self.sent[name][0](rows)

    def fail(self, name: str) -> None:
        self.sent[name][1](OperationTimedOut())


def fence(answers: Sequence[Rows]) -> Request | None:
    swapped, *reads = answers
    return None if swapped == REFUSED or OURS in reads else LATE


class Case:
    def __init__(self, *, beside: bool = True) -> None:
        self.loop, self.line = Loop(), Line()
        self.pending: Pending[list[Rows]] = Pending()
        inbox = Inbox(self.loop)
        errand = Errand(cast("Wire", self.line), inbox, self.pending, fence)
        errand.send(SWAP, EARLY if beside else None)

    def told(self) -> list[Rows] | None:
        self.loop.turn()
        return self.pending.result() if self.pending.done else None


@pytest.mark.parametrize("first", ["swap", "early"])
def test_a_read_that_came_late_enough_is_all_that_is_needed(first: str) -> None:
    case = Case()
    answers = {"swap": APPLIED, "early": OURS}
    case.line.answer(first, answers.pop(first))
    assert case.told() is None
    ((other, rows),) = answers.items()
    case.line.answer(other, rows)
    assert case.told() == [APPLIED, OURS]
    assert "late" not in case.line.sent


@pytest.mark.parametrize("first", ["swap", "early"])
@pytest.mark.parametrize("found", [OTHER, ()])
def test_a_read_that_came_too_early_is_repeated(first: str, found: Rows) -> None:
    case = Case()
    answers = {"swap": APPLIED, "early": found}
    case.line.answer(first, answers.pop(first))
    ((other, rows),) = answers.items()
    case.line.answer(other, rows)
    assert case.told() is None
    case.line.answer("late", OURS)
    assert case.told() == [APPLIED, found, OURS]


def test_a_read_that_failed_is_repeated() -> None:
    case = Case()
    case.line.fail("early")
    case.line.answer("swap", APPLIED)
    case.line.answer("late", OURS)
    assert case.told() == [APPLIED, (), OURS]


@pytest.mark.parametrize("late", ["answer", "fail"])
def test_who_is_refused_does_not_wait_for_it(late: str) -> None:
    case = Case()
    case.line.answer("swap", REFUSED)
    assert case.told() == [REFUSED]
    if late == "fail":
        case.line.fail("early")
    else:
        case.line.answer("early", OTHER)
    assert case.told() == [REFUSED]
    assert "late" not in case.line.sent


@pytest.mark.parametrize("beside", [True, False])
def test_what_is_lost_is_lost_whatever_was_read(*, beside: bool) -> None:
    case = Case(beside=beside)
    case.line.fail("swap")
    if beside:
        case.line.answer("early", OURS)
    with pytest.raises(BackendUnavailable):
        assert case.told()


def test_the_following_one_lost_the_first_may_be_done() -> None:
    case = Case(beside=False)
    case.line.answer("swap", APPLIED)
    case.line.fail("late")
    with pytest.raises(BackendUnavailable) as caught:
        assert case.told()
    assert not caught.value.nothing_done
