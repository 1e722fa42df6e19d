"""Rows, time lines and messages of the live page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorwlock_remote import Holder, LockInfo
from aiorwlock_remote.core.names import key_pair, plain_key, resource, semaphore
from aiorwlock_remote.integrations.board import model
from aiorwlock_remote.integrations.board.model import BoardModel, row_key
from tests.cli.watch.fix_watch import holder, order, queued

READS = [holder(name, mode="read", fence=8) for name in "abc"]
GONE = holder(expires_in=-3.0, age=33.0)
ENDLESS = holder(expires_in=None)


class Viewer:
    """What a page knows, which applies messages as the page's script does."""

    def __init__(self) -> None:
        self.seq = 0
        self.rows: dict[str, Any] = {}
        self.ended: dict[str, list[Any]] = {}
        self.gaps: list[Any] = []
        self.log: list[Any] = []

    def receive(self, board: BoardModel, at: float = 0.0) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(board.encoded(self.seq, at))
        self.seq = message["seq"]
        if message["full"]:
            self.rows, self.ended, self.log = {}, {}, []
        # First what is gone: a resource may have come back since.
        for key in message.get("gone", ()):
            self.rows.pop(key, None)
            self.ended.pop(key, None)
        for view in message["rows"]:
            self.ended.setdefault(view["row"], []).extend(view.pop("ended", ()))
            self.rows[view["row"]] = view
        self.gaps = message.get("gaps", self.gaps)
        for key, ends in message.get("renewed", ()):
            for one, end in zip(self.rows[key]["holders"], ends, strict=True):
                one["ends"] = end
        self.log += message["log"]
        return message


def after(*looks: list[LockInfo], every: float = 1.0) -> tuple[BoardModel, Viewer]:
    board, viewer = BoardModel(), Viewer()
    for at, look in enumerate(looks):
        board.answered(look, at * every)
    viewer.receive(board)
    return board, viewer


def key(number: int | str) -> str:
    return row_key(resource("order", number))


def spans(board: BoardModel, number: int | str = 1) -> list[dict[str, Any]]:
    """The time line of a resource, as a newcomer gets it."""
    viewer = Viewer()
    viewer.receive(board)
    return list(viewer.ended[key(number)])


def test_a_row() -> None:
    _, viewer = after([order(1, ENDLESS, queue=[queued(waiting=3)])])
    (row,) = viewer.rows.values()
    (one,) = row["holders"]
    assert (row["name"], row["type"], one["ends"]) == ("order/1", "order", None)
    assert (one["who"], one["why"], one["left"]) == ("web-3/4711", "refund", True)
    assert one["since"] == -1.0
    (waits,) = row["queue"]
    assert (waits["mode"], waits["tasks"], waits["who"]) == ("write", 3, "web-4/4712")


def test_unchanged_rows_are_not_sent_again() -> None:
    board, viewer = after([order(1, holder()), order(2, *READS)])
    board.answered(
        [
            order(1, holder(age=2.01, expires_in=28.02)),
            order(
                2,
                *(
                    holder(n, mode="read", fence=8, age=2.0, expires_in=28.0)
                    for n in "abc"
                ),
            ),
        ],
        1.0,
    )
    message = viewer.receive(board)
    assert (message["rows"], message["renewed"], message["gone"]) == ([], [], [])
    assert len(json.dumps(message)) < 200


def test_a_renewal_sends_the_new_end_only() -> None:
    board, viewer = after([order(1, holder())])
    board.answered([order(1, holder(age=11.0, expires_in=29.9))], 10.0)
    message = viewer.receive(board)
    assert (message["rows"], message["renewed"]) == ([], [[key(1), [39.9]]])
    assert viewer.rows[key(1)]["holders"][0]["ends"] == 39.9


def test_a_free_resource_stays_for_a_while() -> None:
    board, viewer = after([order(1, holder())], [])
    assert (viewer.rows[key(1)]["holders"], viewer.rows[key(1)]["freed"]) == ([], 1.0)
    board.answered([], 1.0 + model.RECENT_SECONDS)
    assert viewer.receive(board)["gone"] == [key(1)]
    assert viewer.rows == {}


def test_a_resource_that_is_held_again_keeps_its_row() -> None:
    _, viewer = after([order(1, holder())], [], [order(1, holder("b", fence=8))])
    assert list(viewer.rows) == [key(1)]
    assert "freed" not in viewer.rows[key(1)]


def test_time_lines() -> None:
    board, _ = after(
        [order(1, holder())],
        [order(1, holder(age=2.0, expires_in=28.0), queue=[queued(age=0.5)])],
        # The next grant began 0.6 s before this scan: there the one before ended.
        [order(1, holder("b", fence=8, age=0.6))],
    )
    grant, wait = spans(board)
    assert (grant["mode"], grant["since"], grant["to"]) == ("write", -1.0, 1.4)
    assert (wait["wait"], wait["since"], wait["to"]) == (True, 0.5, 2.0)
    assert "wait" not in grant


def test_what_ended_is_sent_once() -> None:
    board, viewer = after(*([order(1, holder(fence=fence))] for fence in range(6)))
    assert len(viewer.ended[key(1)]) == 5
    board.answered([order(1, holder(fence=6))], 6.0)
    (row,) = json.loads(board.encoded(viewer.seq, 6.0))["rows"]
    # At 5.0 the next grant began.
    assert [span["to"] for span in row["ended"]] == [5.0]


def test_keys_are_the_same_in_every_process() -> None:
    """And of different resources different, however much their names look alike."""
    assert key(1) == "ijC-NEy-N_RamkxAhw_96Q"
    alike = [
        *(resource("a", "b"), semaphore("a", "b"), key_pair("a", "b"), plain_key("a")),
        *(resource("a,b", "c"), resource("a", "b,c"), key_pair("a,b", "c")),
        *(key_pair("a", "b,c"), plain_key("a,b"), plain_key("a:b")),
    ]
    assert len({row_key(one) for one in alike}) == len(alike)


def test_what_is_over_is_not_left_behind() -> None:
    """A lease that ran out blocks nobody; a grant that never ends blocks everybody."""
    _, viewer = after([order(1, GONE), order(2, ENDLESS), order(3, holder())])
    left = {row["name"]: row["holders"][0].get("left") for row in viewer.rows.values()}
    assert left == {"order/1": None, "order/2": True, "order/3": None}
    _, viewer = after([replace(order(1, holder()), clock_set_back=9.0)])
    assert viewer.rows[key(1)]["holders"][0]["left"] is True


def test_readers_do_not_end_each_other() -> None:
    board, _ = after(
        [order(1, *READS[:2])],
        [order(1, READS[1], holder("c", mode="read", fence=8, age=0.2))],
    )
    (one,) = spans(board)
    assert (one["since"], one["to"]) == (-1.0, 1.0)


def test_an_expired_lease_is_distinguished_from_a_release() -> None:
    short = holder(expires_in=0.5, age=29.5)
    board, viewer = after([order(1, holder())], [order(1, short)], [])
    (one,) = spans(board)
    assert one["lost"] is True
    assert [entry["kind"] for entry in viewer.log] == ["lost", "free"]


def test_a_gap_is_reported_and_ends_what_ended_in_it() -> None:
    board, viewer = after(
        [order(1, holder())], [order(1, holder(age=2.0, expires_in=28.0))]
    )
    board.paused()
    board.answered([], 60.0)
    viewer.receive(board)
    # Before the first scan nobody looked either.
    assert viewer.gaps == [[0.0, 0.0], [1.0, 60.0]]
    (one,) = spans(board)
    assert one["to"] == 1.0


def test_a_store_that_is_away() -> None:
    board, viewer = after([order(1, holder())])
    board.failed("cannot be\treached", 1.0)
    board.failed("cannot be\treached", 2.0)
    message = viewer.receive(board)
    assert (message["trouble"], message["troubleSince"]) == ("cannot be\\treached", 1.0)
    assert (message["asOf"], list(viewer.rows)) == (0.0, [key(1)])
    board.answered([order(1, holder())], 3.0)
    message = viewer.receive(board)
    assert (message["trouble"], message["troubleSince"]) == ("", None)
    assert [entry["kind"] for entry in viewer.log] == ["unavailable", "watching"]


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SPANS", 100)
    monkeypatch.setattr(model, "MAX_TOMBSTONES", 10)
    monkeypatch.setattr(model, "MAX_FREE_ROWS", 20)
    board = BoardModel()
    for look in range(500):
        # One that changes hands each time, and one that is new each time.
        found = [order("busy", holder(fence=look)), order(look, holder())]
        board.answered(found, float(look))
    rows = board._rows.values()
    assert 0 < len(spans(board, "busy")) <= model.MAX_SPANS_PER_ROW
    assert sum(len(row.spans) for row in rows) <= 100
    assert len(board._ended) <= 100
    assert len(rows) <= 22
    assert len(board._by_key) == len(rows)
    assert len(board._gone) <= 10
    assert len(board._log) <= model.MAX_LOG


def test_a_viewer_far_behind_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_TOMBSTONES", 3)
    board, viewer = after([order(0, holder())])
    for look in range(1, 10):
        board.answered([order(look, holder())], look * model.RECENT_SECONDS)
    assert viewer.receive(board)["full"] is True
    assert viewer.receive(board)["full"] is False
    assert len(viewer.rows) == 2


def test_a_viewer_of_the_future_gets_everything() -> None:
    board, _ = after([order(1, holder())])
    assert board.message(99, 0.0)["full"] is True


HOLDERS = st.lists(
    st.sampled_from(
        [*READS, GONE, ENDLESS, holder("d", fence=9), holder("d", fence=10)]
    ),
    max_size=2,
    unique_by=lambda one: one.holder,
)
LOOKS = st.lists(
    st.none() | st.dictionaries(st.integers(1, 4), HOLDERS, max_size=3),
    min_size=1,
    max_size=12,
)


@given(LOOKS, st.sets(st.integers(0, 11)), st.floats(0.3, 90.0))
def test_viewers_see_the_same_whenever_they_come(
    looks: list[dict[int, list[Holder]] | None], reads: set[int], every: float
) -> None:
    board, slow = BoardModel(), Viewer()
    for number, look in enumerate(looks):
        if look is None:
            board.failed("away", number * every)
        else:
            board.answered(
                [order(i, *held, queue=[queued()]) for i, held in look.items()],
                number * every,
            )
        if number in reads:
            slow.receive(board)
    slow.receive(board)
    new = Viewer()
    new.receive(board)
    assert slow.rows == new.rows
    assert slow.ended == new.ended
    assert slow.gaps == new.gaps


def test_no_secret_is_shown() -> None:
    foreign = holder(foreign=True, fence=None, seat="gluww,1700000000.5", host="")
    board, _ = after([order(1, foreign)], [])
    assert b"gluww" not in board.encoded(0, 0.0)
    assert spans(board)[0]["who"] == "a foreign program"


def test_hostile_names() -> None:
    name = "<script>alert(1)</script>\n\u202e"
    seen = order(1, holder(reason=name, host=name))
    info = LockInfo(
        **{
            field: getattr(seen, field)
            for field in LockInfo.__slots__
            if field not in ("resource_id", "target")
        },
        resource_id=name,
        target=resource("order", name),
    )
    board, viewer = after([info])
    (row,) = viewer.rows.values()
    shown = f"{row['name']}{row['holders'][0]['why']}{row['holders'][0]['who']}"
    assert shown.isprintable()
    assert "\\u202e" in row["holders"][0]["why"]
    # An event ends with an empty line.
    assert b"\n" not in board.encoded(0, 0.0)


def test_fences_are_text() -> None:
    _, viewer = after([order(1, holder(fence=1795257100123456789), fence=2**62)])
    (row,) = viewer.rows.values()
    assert row["holders"][0]["fence"] == "1795257100123456789"
    assert row["fence"] == str(2**62)


def test_only_what_is_seen_can_be_ended() -> None:
    board, viewer = after([order(1, holder(), *READS[1:])])
    shown = viewer.rows[key(1)]["holders"][0]
    seen = board.seen(key(1), shown["holder"], shown["fence"])
    assert seen is not None
    assert [one.holder for one in seen.holders] == ["a" * 12]
    assert board.seen(key(1), shown["holder"], "8") is None
    assert board.seen(key(1), "x" * 12, "7") is None
    assert board.seen(key(2), shown["holder"], shown["fence"]) is None
    board.answered([], 1.0)
    assert board.seen(key(1), shown["holder"], shown["fence"]) is None


def test_size_of_messages_of_10_000_locks() -> None:
    def locks(age: float) -> list[LockInfo]:
        return [
            order(i, holder(age=age, expires_in=30 - age % 10, fence=1795257100123456))
            for i in range(10_000)
        ]

    board, viewer = BoardModel(), Viewer()
    board.answered(locks(1.0), 0.0)
    assert len(board.encoded(0, 0.0)) < 2_500_000
    viewer.receive(board)
    board.answered(locks(2.0), 1.0)
    assert len(board.encoded(viewer.seq, 1.0)) < 200
    # All are renewed between two looks: the worst.
    board.answered(locks(10.5), 2.0)
    assert len(board.encoded(viewer.seq, 2.0)) < 350_000
