"""The queue of one client's tasks, with stores that lose what can be lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core.commands import (
    FULL,
    Claim,
    Granted,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mode_queue import MAX_CLAIMS_PER_ACQUIRE, ModeQueue, Waiter
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from tests.core.mode_queues import Sim, Visit
from tests.examples_of_histories import many

VISITS = st.lists(
    st.builds(
        Visit,
        st.sampled_from(["ann", "bob", "cid"]),
        st.sampled_from(Mode),
        st.integers(0, 500),
        st.integers(0, 50),
        st.none() | st.integers(0, 1_000),
    ),
    min_size=3,
    max_size=24,
)


@pytest.mark.parametrize("faulty", [False, True])
@settings(max_examples=many(300))
@given(st.integers(0, 2**32), VISITS)
def test_whatever_happens_nothing_is_left_behind(
    faulty: bool, seed: int, visits: list[Visit]
) -> None:
    """Tasks that stay are granted in order; those that leave leave nothing."""
    sim = Sim(seed, faulty)
    sim.run(visits)
    for task in sim.tasks:
        stays = task.visit.patience is None
        allowed = {"served", *(["left"] * (not stays)), *(["error"] * faulty)}
        assert task.outcome in allowed, task
    for served in sim.served.values():
        arrivals = [(visits[number].after, number) for number in served]
        assert arrivals == sorted(arrivals)
    assert sim.record.grants == ()
    assert sim.record.queue == ()
    if not faulty:
        assert sim.longest_idle < 0.1, "somebody had to poll"


# --------------------------------------------------------------- one lane by hand


def waiter(
    ticket: str, policy: Policy = Policy.FAIR, limit: int | None = None
) -> Waiter:
    """Return a waiting task."""
    return Waiter(Claim(ticket, 10_000_000), policy, limit)


def grant(ticket: str, since: int = 5) -> Grant:
    """Return a grant of the store."""
    return Grant(ticket, Mode.WRITE, 1, since, since + 10_000_000)


def lane(mode: Mode = Mode.WRITE) -> ModeQueue:
    """Return a queue of client "g"."""
    return ModeQueue("g", mode, PollPolicy())


def test_one_request_at_a_time() -> None:
    """The acquire counts the writers behind it, who share its entry."""
    it = lane()
    first = it.join(waiter("a"))
    assert first is not None
    assert (first.claims[0].ticket, first.more, first.waiting) == ("a", 0, 1)
    assert it.join(waiter("b")) is None
    assert it.join(waiter("c")) is None
    news = it.answered(Granted((grant("a"),), 5), 1.0, 1.1, 0.5)
    assert [w.ticket for w in news.served] == ["a"]
    assert news.send is not None
    assert getattr(news.send, "more", None) == 1


def test_readers_ask_together() -> None:
    """Readers of one policy ask together, up to a batch."""
    it = lane(Mode.READ)
    it.join(waiter("first"))
    for number in range(MAX_CLAIMS_PER_ACQUIRE + 3):
        it.join(waiter(f"r{number}"))
    it.join(waiter("other", Policy.READER))
    news = it.answered(Granted((grant("first"),), 5), 1.0, 1.1, 0.5)
    assert news.send is not None
    assert len(getattr(news.send, "claims", ())) == MAX_CLAIMS_PER_ACQUIRE
    assert getattr(news.send, "more", None) == 4


def test_who_waits_looks_again_when_told_or_at_its_poll() -> None:
    """A wake-up during a request makes the queue ask again at once."""
    it = lane()
    it.join(waiter("a"))
    it.answered(Waiting(1, 300_000), 1.0, 1.1, 0.0)
    assert it.due == pytest.approx(1.4)
    assert it.watching
    assert it.ask() is not None
    it.answered(Waiting(1, None), 1.5, 1.6, 0.0)
    assert it.due == pytest.approx(2.6)
    assert it.wake() is not None
    assert it.wake() is None
    news = it.answered(Waiting(1, None), 1.7, 1.8, 0.0)
    assert news.send is not None


def test_who_joins_a_place_has_it() -> None:
    """A task that joins an entry waits through an outage as those before it do."""
    it = lane()
    it.join(first := waiter("a"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.0)
    assert it.join(second := waiter("b")) is None
    it.leave(first)
    assert it.ask() is not None
    assert it.failed(2.5, 0.5).turned_away == []
    assert list(it.waiters) == [second]


def test_what_was_not_carried_out_is_asked_again_while_there_is_time() -> None:
    """A request that was certainly not carried out leaves nothing to withdraw."""
    it = lane()
    it.join(first := waiter("a"))
    first.until = 3.0
    assert it.failed(1.0, 0.5, repeat=True).turned_away == []
    assert it.due is not None
    assert it.due < first.until
    assert it.ask() is not None
    assert it.failed(2.99, 0.5, repeat=True).turned_away == [first]
    assert it.leave(first) is None


def test_what_the_store_said_last() -> None:
    it = lane()
    it.join(first := waiter("a"))
    assert it.last_reply_to(first) is None
    it.join(second := waiter("b"))
    it.answered(Granted((grant("a"),), 5, placed=True), 1.0, 1.1, 0.5)
    it.join(third := waiter("c"))
    for one in (second, third):
        said = it.last_reply_to(one)
        assert said is not None
        assert (said.retry_after, len(said.holders)) == (10_000_000, 1)
    assert it.ask() is not None
    it.answered(waits := Waiting(1, 300_000, ("somebody",)), 1.5, 1.6, 0.0)
    assert it.last_reply_to(second) is it.last_reply_to(third) is waits


def test_a_grant_whose_answer_was_lost_is_anchored_at_its_own_request() -> None:
    """A grant in the reply to a repeated request counts from the first request."""
    it = lane()
    it.join(one := waiter("a"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.0)
    it.ask()
    it.failed(2.5, 0.5)
    assert list(it.waiters) == [one], "it has a place: waits on"
    it.ask()
    late = Granted((grant("a", since=2_000_000),), now=4_000_000)
    news = it.answered(late, sent_at=4.0, now=4.1, random=0.5)
    assert news.served == [one]
    assert one.sent_at == pytest.approx(2.0)


def test_without_a_place_a_failure_is_told() -> None:
    """A task without an entry is turned away; the next one asks after a pause."""
    it = lane()
    it.join(one := waiter("a"))
    it.join(waiter("b"))
    news = it.failed(1.0, 0.5)
    assert news.turned_away == [one]
    assert it.due is not None
    assert it.due > 1.0


def test_a_full_queue_turns_away() -> None:
    """A task that is turned away lets the next one ask."""
    it = lane()
    it.join(one := waiter("a", limit=1))
    it.join(waiter("b", limit=9))
    news = it.answered(Refused(FULL), 1.0, 1.1, 0.5)
    assert news.turned_away == [one]
    assert getattr(news.send, "max_waiters", None) == 9


def test_leaving() -> None:
    """A ticket that was sent is withdrawn; the last task gives the entry back."""
    it = lane()
    it.join(one := waiter("a"))
    it.join(two := waiter("b"))
    assert it.leave(one) == Withdraw("g", Mode.WRITE, ("a",), keep=True)
    it.answered(Waiting(0, None), 1.0, 1.1, 0.5)
    assert it.leave(two) == Withdraw("g", Mode.WRITE, (), keep=False)
    assert it.idle
    it.join(three := waiter("c"))
    it.join(four := waiter("d"))
    assert it.leave(four) is None
    assert it.leave(three) == Withdraw("g", Mode.WRITE, ("c",), keep=False)
    news = it.answered(Granted((grant("c"),), 5, placed=True), 1.0, 1.1, 0.5)
    assert (news.served, news.send) == ([], None)
    assert it.idle


def test_who_leaves_after_a_lost_answer_is_withdrawn() -> None:
    """Its ticket may have been granted, although no request is under way."""
    it = lane()
    it.join(one := waiter("a"))
    it.join(waiter("b"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.5)
    it.ask()
    it.failed(2.0, 0.5)
    assert it.leave(one) == Withdraw("g", Mode.WRITE, ("a",), keep=True)


def test_a_place_that_may_have_been_made_is_given_back() -> None:
    """The last task gives back an entry of which no reply ever told."""
    it = lane(Mode.READ)
    it.join(waiter("a"))
    it.join(two := waiter("b"))
    it.failed(1.0, 0.5)
    assert it.leave(two) == Withdraw("g", Mode.READ)
    assert it.leave(two) is None


def test_a_place_made_for_tasks_that_left_is_given_back() -> None:
    """The tasks left while the request was under way."""
    it = lane()
    it.join(waiter("a"))
    it.answered(Waiting(0, None), 1.0, 1.1, 0.5)
    it.join(two := waiter("b"))
    it.ask()
    assert it.leave(two) is None
    news = it.answered(Granted((grant("a"),), 5, placed=True), 1.0, 1.1, 0.5)
    assert news.send == Withdraw("g", Mode.WRITE)


def test_the_place_of_those_who_were_turned_away_is_given_back() -> None:
    """A task that comes next asks for itself, so the entry would stay unused."""
    it = lane()
    it.join(one := waiter("a"))
    it.answered(Waiting(0, None), 1.0, 1.1, 0.5)
    it.ask()
    one.last_reply = None  # as the wait queue does when an error will not pass
    news = it.failed(2.0, 0.5)
    assert (news.turned_away, news.send) == ([one], Withdraw("g", Mode.WRITE))
    assert it.join(waiter("b")) is not None


def test_nobody_looks_for_those_who_left() -> None:
    """The last task that leaves cancels the next poll."""
    it = lane()
    it.join(waiter("a"))
    it.join(two := waiter("b"))
    it.failed(1.0, 0.5)
    assert it.due is not None
    it.leave(two)
    assert it.due is None
