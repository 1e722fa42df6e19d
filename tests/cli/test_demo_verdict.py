"""What the demo makes of a recorded history, good and bad, and how it looks."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from aiorwlock_remote.cli.demo import worker
from aiorwlock_remote.cli.demo.screen import DemoState, PlainOutput, TableOutput
from aiorwlock_remote.cli.demo.verdict import Report, report
from aiorwlock_remote.cli.demo.worker import DEPOSIT, TOTAL, BookEntry, Ledger
from aiorwlock_remote.testing.history import History, now, read_history

if TYPE_CHECKING:
    from pathlib import Path

    from aiorwlock_remote.testing.history import Attempt, Event

SECOND = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Histories as a good demo leaves them: w1 was killed, w2 stopped, w3 took over."""
    with (
        History(tmp_path / "w1.jsonl", process="w1") as w1,
        History(tmp_path / "w2.jsonl", process="w2") as w2,
        History(tmp_path / "w3.jsonl", process="w3") as w3,
        History(tmp_path / "demo.jsonl", process="demo") as demo,
    ):
        enter(w1, "north", "killed", fence=1).access(step=1, serial=1, until=now())
        demo.died("w1")
        leave(enter(w3, "north", "next", fence=2))
        stopped = enter(w2, "south", "stopped", fence=1)
        stopped.access(step=1, serial=1, until=now())
        other = enter(w3, "south", "other", fence=2)
        other.access(step=1, serial=2, until=other.until)
        leave(other)
        stopped.access(step=2, serial=None, until=stopped.until)
        stopped.lost("expired")
    return tmp_path


def enter(history: History, name: str, holder: str, fence: int) -> Attempt:
    attempt = history.ask(name, "W", holder=holder)
    lease = SECOND if holder in ("next", "other") else 0
    attempt.granted(fence=fence, until=now() + lease)
    return attempt


def leave(attempt: Attempt) -> None:
    attempt.releasing(until=attempt.until)
    attempt.released(ok=True)


def events(folder: Path) -> list[Event]:
    return list(read_history(sorted(folder.glob("*.jsonl"))))


SEEN = {
    "killed": "w1 held north; its lease ran out, w3 entered 5 ms later",
    "stopped": "w2 held south; late write refused, told LockLost (expired)",
}


def judged(found: list[Event], *book: BookEntry, broken: bool = False) -> Report:
    return report(found, book, SEEN, broken=broken)


def test_a_good_demo(folder: Path) -> None:
    found = judged(events(folder))
    assert found.ok
    text = "\n".join(found.lines())
    assert all(line in text for line in SEEN.values())
    assert "NOT SEEN" not in text


@pytest.mark.parametrize("missing", SEEN)
def test_a_fault_that_is_not_seen_did_not_happen(folder: Path, missing: str) -> None:
    seen = {kind: text for kind, text in SEEN.items() if kind != missing}
    found = report(events(folder), [], seen, broken=False)
    assert found.violations == 0
    assert not found.ok
    assert "NOT SEEN" in "\n".join(found.lines())


def test_nothing_was_staged(folder: Path) -> None:
    assert not report(events(folder), [], {}, broken=False).ok


def test_a_good_run_without_locks_is_no_success(folder: Path) -> None:
    assert not judged(events(folder), broken=True).ok


def entry(holder: str, mode: str, *balances: int) -> BookEntry:
    rest = [DEPOSIT] * (worker.ACCOUNTS - len(balances))
    return BookEntry("north", holder, mode, (*balances, *rest))


def test_money_and_torn_reads(folder: Path) -> None:
    book = (
        entry("w", "W", 90, 110),
        entry("r", "R", 90, 110),
        entry("x", "W", 95, 110),  # money came
        entry("r", "R", 95, 110),  # and changed under a reader
        entry("y", "W", 95, 105),  # money went
    )
    found = judged(events(folder), *book)
    assert (found.counts["money"], found.counts["torn"]) == (2, 1)
    assert found.violations == 3
    assert not found.ok
    text = "\n".join(found.lines())
    assert f"{TOTAL} became {TOTAL + 5} by x" in text


# --------------------------------------------------------------------- ledger


def test_the_ledger_refuses_old_fences(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    worker.create_ledgers(file, ["north", "south"])
    with Ledger(file, "north") as north, Ledger(file, "south") as south:
        assert north.access(5, "a", "W", {0: 90, 1: 110}) is not None
        page = north.access(7, "b", "R")  # a read raises the bar, too
        assert page is not None
        assert (page.serial, page.balances[:3]) == (2, [90, 110, 100])
        assert north.access(6, "a", "W", {0: 0}) is None
        assert north.access(6, "a", "W") is None
        again = north.access(7, "b", "R")
        assert again is not None
        assert again.serial == 3
        assert south.access(1, "c", "R") is not None
    lines = [(line.ledger, line.holder, line.mode) for line in worker.read_book(file)]
    assert lines == [
        ("north", "a", "W"),
        ("north", "b", "R"),
        ("north", "b", "R"),
        ("south", "c", "R"),
    ]


# ---------------------------------------------------------------------- looks


@pytest.fixture
def state(tmp_path: Path) -> DemoState:
    """Two ledgers; at one w1, killed, holds and two wait."""
    with (
        History(tmp_path / "w1.jsonl", process="w1") as w1,
        History(tmp_path / "w2.jsonl", process="w2") as w2,
    ):
        w1.ask("north", "W").granted(fence=1795258490582562, until=now() + 99 * SECOND)
        w2.ask("north", "W")
        w2.ask("north", "R")
    found = DemoState(
        [tmp_path / "w1.jsonl", tmp_path / "w2.jsonl"], ["north", "south"]
    )
    found.marks["w1"] = "killed"
    found.read()
    found.read()  # nothing is counted twice
    return found


@pytest.mark.parametrize(
    ("width", "fence"), [(80, "…582562"), (120, "1795258490582562")]
)
def test_the_board_fits(state: DemoState, width: int, fence: str) -> None:
    console = Console(
        file=StringIO(), force_terminal=True, width=width, color_system=None
    )
    with TableOutput(console, state) as board:
        board.tell("something happened")
        board.paint()
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue().splitlines()
    assert any("something happened" in row for row in shown)
    row = next(row for row in shown if row.startswith("north"))
    assert len(row) <= width
    for word in ("write", "w1 killed", fence, "1W 1R"):
        assert word in row


def test_plain_lines(state: DemoState) -> None:
    console = Console(file=StringIO(), width=80)
    with PlainOutput(console, state) as lines:
        lines.tell("something happened " * 10)
    assert isinstance(console.file, StringIO)
    (line,) = console.file.getvalue().splitlines()
    assert line.startswith("  0.0 s  something")
