"""What a terminal shows: it fits, and what matters is there and stands out."""

from __future__ import annotations

from datetime import timedelta
from itertools import product, starmap

import pytest
from rich.cells import cell_len

from aiorwlock_remote import LockInfo
from aiorwlock_remote.cli.watch.screen import (
    BAD,
    DIM,
    HEAD,
    NEW,
    OVER,
    PLAIN,
    Line,
    Size,
    render,
)
from aiorwlock_remote.cli.watch.state import WatchState
from tests.cli.watch.fix_watch import NOON, holder, order, queued

WIDE = Size(120, 24)


def view_of(*found: LockInfo) -> WatchState:
    """Seen at noon, at the first look."""
    view = WatchState()
    view.answered(found, 0.0, NOON)
    return view


def drawn(view: WatchState, size: Size = WIDE, now: float = 0.0) -> list[Line]:
    return render(view, "sqlite:///x.db", 1.0, now, size)


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_one_row() -> None:
    view = view_of(order(1, holder(), queue=[queued(), queued("read", waiting=2)]))
    assert drawn(view) == [
        ("12:00:00Z  1 held, waiting: 1 write, 2 read  sqlite:///x.db", PLAIN),
        (
            (
                "RESOURCE  MODE   HOLDER        FENCE  AGE    LEASE LEFT"
                "  WAITING          WHO"
            ),
            HEAD,
        ),
        (
            (
                "order/1   write  aaaaaaaaaaaa  7      1.0 s  29.0 s    "
                "  1 write, 2 read  web-3/4711: refund"
            ),
            PLAIN,
        ),
    ]


def test_nothing_to_show() -> None:
    assert texts(drawn(WatchState())) == ["0 held, waiting: nobody  sqlite:///x.db"]
    assert texts(drawn(view_of())) == [
        "12:00:00Z  0 held, waiting: nobody  sqlite:///x.db",
        "nothing is held or waited for",
    ]


def test_the_longest_waiter_comes_first() -> None:
    view = view_of(
        order(1, holder()),
        order(2, holder(), queue=[queued(age=1.0)]),
        order(3, holder(), queue=[queued(age=60.0), queued(age=2.0)]),
        order(4, queue=[queued(age=5.0)]),
    )
    rows = [text.split()[0] for text in texts(drawn(view))[2:]]
    assert rows == ["order/3", "order/4", "order/2", "order/1"]


@pytest.mark.parametrize("resources", [0, 1, 7, 100])
def test_the_screen_fits_the_terminal(resources: int) -> None:
    view = view_of()
    found = [order(n, holder(reason="漢字" * n)) for n in range(resources)]
    view.answered(found, 1.0, NOON)
    view.failed("it is\x1b[31m down", NOON)
    for size in starmap(Size, product((1, 20, 50, 80, 120), range(1, 31))):
        lines = drawn(view, size, now=3.0)
        assert len(lines) <= size.height
        assert all(text.isprintable() for text in texts(lines))
        assert max(map(cell_len, texts(lines))) <= size.width


@pytest.mark.parametrize(("height", "shown"), [(5, 2), (6, 3), (8, 5), (9, 7), (10, 7)])
def test_cut_lines_are_counted_on_the_screen(height: int, shown: int) -> None:
    view = view_of(*(order(n, holder()) for n in range(7)))
    lines = texts(drawn(view, Size(120, height)))
    assert sum("order/" in text for text in lines) == shown
    assert (lines[-1] == f"… and {7 - shown} more") == (shown < 7)


def test_at_a_narrow_terminal_nothing_that_break_wants_is_cut() -> None:
    view = view_of(order(1, holder(fence=1795257100123456), queue=[queued()]))
    for width, lines in ((95, 1), (94, 2), (76, 2), (60, 2), (48, 3)):
        _, head, *row = texts(drawn(view, Size(width, 9)))
        assert "WAITING" in head
        assert "1 write" in row[0]
        assert len(row) == lines
        for word in ("aaaaaaaaaaaa", "1795257100123456", "web-3/4711: refund"):
            assert word in " ".join(row)


def test_changed_lines_stand_out_for_a_while() -> None:
    view = view_of(order(1, holder()), order(2, holder("b")))
    assert {line.style for line in drawn(view)[2:]} == {PLAIN}
    found = [
        order(1, holder()),
        order(2, holder("c")),
        order(3, holder(expires_in=-1.0)),
    ]
    view.answered(found, 1.0, NOON + timedelta(seconds=1))
    table = drawn(view, now=1.0)[2:5]
    assert [line.style for line in table] == [PLAIN, NEW, OVER]
    view.answered(found, 5.9, NOON + timedelta(seconds=5.9))
    assert drawn(view, now=5.9)[3].style == NEW
    assert drawn(view, now=6.1)[3].style == PLAIN


def test_the_last_changes_stand_below() -> None:
    view = view_of(order(1, holder()))
    view.answered([order(1, holder("b"))], 1.0, NOON + timedelta(seconds=1))
    view.answered([], 2.0, NOON + timedelta(seconds=2))
    *_, empty, ended, granted, gone, free = drawn(view)
    assert empty.text == ""
    assert ended.text.startswith("12:00:01Z  ended        order/1  write aaaaaaaaaaaa")
    assert granted.text.startswith("12:00:01Z  granted      order/1  write bbbbbbb")
    assert gone.text.startswith("12:00:02Z  ended        order/1  write bbbbbbb")
    assert free == ("12:00:02Z  free         order/1", NEW)
    assert (ended.style, gone.style) == (DIM, NEW)
    assert texts(drawn(view, Size(120, 9)))[1:] == ["nothing is held or waited for"]


def test_a_store_that_does_not_answer() -> None:
    view = view_of(order(1, holder()))
    view.asked(1.0)
    assert len(drawn(view, now=2.9)) == 3
    assert drawn(view, now=3.0)[1] == ("no answer for 2.0 s", BAD)
    view.failed("it is down", NOON + timedelta(seconds=3))
    view.failed("it is still down", NOON + timedelta(seconds=4))
    lines = drawn(view, now=5.0)
    assert lines[1] == ("unavailable since 12:00:03Z: it is still down", BAD)
    assert [line.style for line in lines[3:4]] == [DIM]  # as it was at noon
    view.answered([order(1, holder())], 6.0, NOON + timedelta(seconds=6))
    assert BAD not in {line.style for line in drawn(view)}
    kinds = [change.kind for _, change in view.log]
    assert kinds == ["unavailable", "watching"]
