"""Replay accepts what the core does, and finds the first request that differs."""

from __future__ import annotations

from dataclasses import replace as with_fields
from pathlib import Path

import pytest

from aiorwlock_remote.core.commands import Acquire, Granted, Release, Released
from aiorwlock_remote.core.value import replace
from tests.traces.faults import PLANTED
from tests.traces.history import Journal, Request, State, read_journal
from tests.traces.random_histories import tell
from tests.traces.replay import (
    CASSANDRA,
    ETCD,
    POSTGRESQL,
    REDIS,
    SQLITE,
    Forked,
    check_replies,
    in_order,
    replay,
)

LENGTH = 60


@pytest.fixture(scope="module")
def story() -> list[Request]:
    return tell(1, LENGTH)


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_the_core_are_accepted(seed: int) -> None:
    replies, difference = replay(tell(seed, LENGTH), SQLITE)
    assert difference is None
    assert len(replies) == LENGTH


@pytest.mark.parametrize("fault", PLANTED)
def test_a_broken_rule_is_found(fault: str) -> None:
    with PLANTED[fault]():
        broken = tell(1, LENGTH)
    replies, difference = replay(broken, SQLITE)
    assert difference is not None
    assert difference.request is broken[len(replies)]
    assert difference.expected != difference.seen


def test_a_difference_names_what_differs() -> None:
    with PLANTED["fences_do_not_rise"]():
        broken = tell(1, LENGTH)
    _, difference = replay(broken, SQLITE)
    assert difference is not None
    shown = str(difference)
    assert "another record is stored" in shown
    assert "differs: {'grants':" in shown


def test_another_reply_is_found(story: list[Request]) -> None:
    number = _first(story, Granted)
    reply = story[number].reply
    assert isinstance(reply, Granted)
    altered = with_fields(story[number], reply=replace(reply, now=reply.now + 1))
    replies, difference = replay([*story[:number], altered], SQLITE)
    assert len(replies) == number
    assert difference is not None
    assert difference.what == "the caller received another reply"


def test_a_reply_that_was_lost_is_not_compared(story: list[Request]) -> None:
    silent = [with_fields(request, reply=None) for request in story]
    assert replay(silent, SQLITE)[1] is None


def test_a_change_between_two_commands_is_found(story: list[Request]) -> None:
    number = _first(story, Released)
    left_out = [*story[:number], *story[number + 1 :]]
    _, difference = replay(left_out, SQLITE)
    assert difference is not None
    assert difference.what == "the record changed between two commands"
    assert difference.request is story[number + 1]


@pytest.mark.parametrize("late", [False, True])
def test_a_mutex_record_may_only_vanish_at_its_end(
    story: list[Request], *, late: bool
) -> None:
    first, following = story[1], story[2]
    seat = first.after.seat
    assert seat is not None
    assert seat.expires is not None
    now = seat.expires + 1_000 if late else following.now
    gone = with_fields(following, now=now, before=State(following.before.record, None))
    _, difference = replay([first, gone], REDIS)
    assert difference is not None
    vanished = difference.what == "the mutex record changed between two commands"
    assert vanished is not late


def test_a_server_chooses_a_fence_above_all_before(story: list[Request]) -> None:
    first = story[0]
    record, reply = first.after.record, first.reply
    assert record is not None
    assert isinstance(reply, Granted)
    for fence, accepted in ((record.last + 5, True), (record.last - 5, False)):
        grant = replace(record.grants[0], fence=fence)
        stored = replace(record, last=fence, grants=(grant,))
        chosen_reply = replace(reply, grants=(grant,))
        chosen = with_fields(
            first, after=State(stored, first.after.seat), reply=chosen_reply
        )
        assert (replay([chosen], POSTGRESQL)[1] is None) is accepted
        assert replay([chosen], SQLITE)[1] is not None


# ---------------------------------------------------------------------- the order


def test_versions_give_the_order(story: list[Request]) -> None:
    assert in_order(reversed(story), SQLITE) == story


def test_a_doubtful_change_is_applied_if_it_was_seen(story: list[Request]) -> None:
    number = _first(story, Released)
    doubtful = with_fields(story[number], certain=False, end=None, reply=None)
    history = [*story[:number], doubtful, *story[number + 1 :]]
    ordered = in_order(history, SQLITE)
    assert [request.command for request in ordered] == [
        request.command for request in story
    ]
    assert replay(ordered, SQLITE)[1] is None


def test_a_doubtful_change_is_left_out_if_it_was_not_seen(
    story: list[Request],
) -> None:
    last = story[-1]
    never = with_fields(last, certain=False, end=None, command=Release("t"))
    assert in_order([*story, never], SQLITE) == story


def test_a_doubtful_release_may_leave_a_record_of_nothing(story: list[Request]) -> None:
    """It has a version, from which the next change starts; a later one is removed."""
    held, nothing = story[0].after, State()
    assert held.record is not None
    kept = State(replace(held.record, grants=()), None)

    def change(start: str | None, end: str | None, *states: State) -> Request:
        before, after = states
        return with_fields(story[0], start=start, end=end, before=before, after=after)

    history = [
        change(None, "a", nothing, held),
        with_fields(change("a", None, held, kept), certain=False),
        change("b", "c", kept, held),
        change("c", None, held, nothing),
        change(None, "d", nothing, held),
    ]
    ordered = in_order(history, ETCD)
    assert [request.end for request in ordered] == ["a", "b", "c", None, "d"]


def test_a_doubtful_change_that_was_seen_has_its_place_in_time(
    story: list[Request],
) -> None:
    """Where no version tells the order: after the record was removed."""
    held, nothing = story[0].after, State()
    ends = ["a", None, "b", None, "c"]
    history = [
        with_fields(
            story[0],
            now=now,
            start=start,
            end=end,
            before=held if start else nothing,
            after=held if end else nothing,
            certain=end != "b",
        )
        for now, (start, end) in enumerate(zip([None, *ends[:-1]], ends, strict=True))
    ]
    ordered = in_order(reversed(history), CASSANDRA)
    assert [request.end for request in ordered] == ends


def test_two_changes_of_one_version_are_no_order(story: list[Request]) -> None:
    other = with_fields(story[5], end="another", now=story[5].now + 1)
    with pytest.raises(Forked, match="two changes were made from one version"):
        in_order([*story, other], SQLITE)


def test_a_version_that_nobody_made_is_no_order(story: list[Request]) -> None:
    with pytest.raises(Forked, match="versions that nobody made"):
        in_order([*story[:5], *story[6:]], SQLITE)


def test_an_empty_row_ends_by_itself(story: list[Request]) -> None:
    first = story[0]
    burnt = with_fields(first, after=State(), end="placeholder")
    ordered = in_order([burnt, with_fields(first, now=first.now + 1)], CASSANDRA)
    assert len(ordered) == 2


def test_a_doubtful_removal_is_applied_if_the_row_was_made_anew(
    story: list[Request],
) -> None:
    first = story[0]
    again = with_fields(first, now=first.now + 20, end="second")
    left = with_fields(first, before=first.after, after=State(), now=first.now + 10)
    removal = with_fields(left, start=first.end, end=None, certain=False)
    gone = with_fields(left, start="second", end=None, now=first.now + 30)
    third = with_fields(first, now=first.now + 40, end="third")
    history = [third, gone, again, removal, first]
    ends = [one.end for one in in_order(history, CASSANDRA)]
    assert ends == [first.end, None, "second", None, "third"]


def test_the_version_that_a_doubtful_change_would_store_is_known(
    story: list[Request],
) -> None:
    """Cassandra: the record of the end is what the next one started from."""
    number = _first(story, Released)
    change = story[number]
    doubtful = with_fields(change, after=State(), certain=False)
    never = with_fields(doubtful, end="never stored")
    history = [*story[:number], never, doubtful, *story[number + 1 :]]
    ordered = in_order(history, CASSANDRA)
    assert [one.end for one in ordered] == [one.end for one in story]
    assert ordered[number].after == change.after


# -------------------------------------------------------------------- the replies


def test_each_reply_to_a_caller_is_one_of_the_core() -> None:
    story = tell(1, LENGTH)
    replies, _ = replay(story, REDIS)
    request, reply = story[0], replies[0]
    assert isinstance(request.command, Acquire)
    assert isinstance(reply, Granted)
    key = request.process, request.resource, request.command
    replayed = list(zip(story, replies, strict=True))
    assert check_replies({key: [reply]}, replayed) is None
    twice = check_replies({key: [reply, reply]}, replayed)
    assert twice is not None
    other = check_replies({key: [replace(reply, now=0)]}, replayed)
    assert other is not None
    assert other.request.command == request.command


def test_the_last_fact_of_a_killed_process_may_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "w0.journal"
    journal = Journal(path, "w0")
    journal.write("one")
    journal.write("two")
    journal.close()
    path.write_bytes(path.read_bytes()[:-1])
    assert list(read_journal(path)) == ["one"]


def _first(story: list[Request], kind: type) -> int:
    return next(n for n, request in enumerate(story) if isinstance(request.reply, kind))
