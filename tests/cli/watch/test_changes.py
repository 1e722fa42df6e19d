"""What changed from one look to the next, in words and as JSON."""

from __future__ import annotations

import json
import re

import pytest

from aiorwlock_remote import LockInfo
from aiorwlock_remote.cli.watch.state import CHANGE_KEYS, as_json, as_line
from aiorwlock_remote.locks.changes import Change, ChangeDetector
from tests.cli.watch.fix_watch import NOON, brief, holder, order, queued

GONE = holder(expires_in=-3.0, age=33.0)
READS = holder(mode="read", fence=8)


def changes_between(*looks: list[LockInfo], every: float = 1.0) -> list[str]:
    """Return the changes that the last look shows."""
    changes = ChangeDetector()
    return brief(
        [changes.since(look, at * every) for at, look in enumerate(looks)].pop()
    )


def test_at_first_it_tells_what_is_there() -> None:
    there = [
        order(1, holder()),
        order(2, READS, holder("b", mode="read"), queue=[queued()]),
        order(3, GONE),
        order(4, queue=[queued()]),
    ]
    assert changes_between(there) == [
        *("held order/1 a", "held order/2 a", "held order/2 b", "queue order/2"),
        *("lost order/3 a", "queue order/4"),
    ]
    assert changes_between([]) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [order(1, holder())], ["granted order/1 a"]),
        ([order(1, holder())], [], ["ended order/1 a", "free order/1"]),
        (
            [order(1, holder())],
            [order(1, holder(age=2.0, expires_in=28.0))],
            [],
        ),
        (
            [order(1, holder())],
            [order(1, holder("b", fence=8))],
            ["ended order/1 a", "granted order/1 b"],
        ),
        (  # the same ticket again
            [order(1, holder())],
            [order(1, holder(fence=8))],
            ["granted order/1 a"],
        ),
        (
            [order(1, holder())],
            [order(1, READS)],
            ["granted order/1 a"],
        ),  # downgraded
        (
            [order(1, holder())],
            [order(1, GONE)],
            ["lost order/1 a", "free order/1"],
        ),
        ([order(1, GONE)], [order(1, GONE)], []),
        ([order(1, GONE)], [], []),
        (
            [order(1, GONE)],
            [order(1, holder("b"))],
            ["granted order/1 b"],
        ),
        (
            [order(1, READS, holder("b", mode="read"))],
            [order(1, READS)],
            ["ended order/1 b"],
        ),
        (
            [order(1, holder(), queue=[queued(age=1.0)])],
            [order(1, holder(), queue=[queued(age=2.0)])],
            [],
        ),
        (
            [order(1, holder())],
            [order(1, holder(), queue=[queued()])],
            ["queue order/1"],
        ),
        (
            [order(1, holder(), queue=[queued(waiting=2)])],
            [order(1, holder(), queue=[queued(waiting=1)])],
            ["queue order/1"],
        ),
        (
            [order(1, holder(), queue=[queued()])],
            [order(1, holder("b"))],
            ["ended order/1 a", "granted order/1 b", "queue order/1"],
        ),
        (
            [order(1, holder()), order(2, holder("b"))],
            [order(2, holder("b")), order(3, holder("c"))],
            ["ended order/1 a", "free order/1", "granted order/3 c"],
        ),
    ],
)
def test_the_changes_between_two_looks(
    before: list[LockInfo], after: list[LockInfo], expected: list[str]
) -> None:
    assert changes_between(before, after) == expected


def left(seconds: float | None) -> list[LockInfo]:
    return [order(1, holder(expires_in=seconds))]


@pytest.mark.parametrize(
    ("looks", "kind"),
    [
        ([left(28.0), left(0.8), []], "lost"),  # nobody renewed it
        ([left(28.0), left(1.2), []], "ended"),  # it was not over yet
        ([left(0.9), left(0.7), left(1.0), left(0.7), []], "ended"),  # a short lease
        ([left(None), []], "ended"),
        ([left(28.0), left(0.8), left(28.0), []], "ended"),  # renewed late
    ],
)
def test_one_that_is_gone_was_lost_if_it_had_missed_a_renewal(
    looks: list[list[LockInfo]], kind: str
) -> None:
    assert changes_between(*looks)[0] == f"{kind} order/1 a"


def test_a_resource_that_is_not_listed_any_more_is_reported_as_free() -> None:
    changes = ChangeDetector()
    changes.since([order(1, holder(), queue=[queued()])], 0.0)
    *_, free, queue = changes.since([], 1.0)
    assert (free.kind, queue.kind) == ("free", "queue")
    assert free.now is not None
    assert (free.now.locked, free.now.queue, free.now.fence) == (False, (), 7)


SEEN = order(1, holder(), queue=[queued(), queued("read", waiting=2)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("watching"), "watching"),
        (Change("unavailable", error="no answer"), "unavailable  no answer"),
        (
            Change("held", SEEN, holder()),
            (
                "held         order/1  write aaaaaaaaaaaa, fence 7, for 1.0 s,"
                " lease 29.0 s, web-3/4711: refund"
            ),
        ),
        (
            Change("granted", SEEN, holder(host="", fence=None, foreign=True)),
            (
                "granted      order/1  write aaaaaaaaaaaa, fence -, lease 29.0 s,"
                " a foreign program: refund"
            ),
        ),
        (
            Change("ended", SEEN, holder(host="", reason="")),
            "ended        order/1  write aaaaaaaaaaaa, fence 7, after 1.0 s",
        ),
        (
            Change("lost", SEEN, holder(host="", reason="")),
            (
                "lost         order/1  write aaaaaaaaaaaa, fence 7, after 1.0 s,"
                " its lease ran out"
            ),
        ),
        (
            Change("lost", SEEN, GONE),
            (
                "lost         order/1  write aaaaaaaaaaaa, fence 7, after 33.0 s,"
                " lease ended 3.0 s ago, web-3/4711: refund"
            ),
        ),
        (Change("free", SEEN), "free         order/1"),
        (Change("queue", SEEN), "queue        order/1  waiting: 1 write, 2 read"),
        (Change("queue", order(1)), "queue        order/1  waiting: nobody"),
    ],
)
def test_in_words(change: Change, words: str) -> None:
    assert as_line(change, NOON) == f"2026-11-22T12:00:00.000Z  {words}"


def test_as_json() -> None:
    line = as_json(Change("lost", SEEN, holder()), NOON)
    assert "\n" not in line
    report = json.loads(line)
    assert list(report) == re.findall(r"^  (\w+) ", CHANGE_KEYS, re.MULTILINE)
    assert (report["time"], report["change"]) == ("2026-11-22T12:00:00.000Z", "lost")
    assert (report["resource"], report["error"]) == ("order/1", None)
    assert report["holder"] == report["now"]["holders"][0]
    assert [one["waiting"] for one in report["now"]["queue"]] == [1, 2]
    down = json.loads(as_json(Change("unavailable", error="no answer"), NOON))
    assert down["error"] == "no answer"
    assert [down[key] for key in ("resource", "holder", "now")] == [None] * 3
