"""The queue of one client's tasks, with stores that lose what can be lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorwlock_remote.core import mode_queue
from aiorwlock_remote.core.commands import (
    FULL,
    Acquire,
    Answer,
    Claim,
    Granted,
    NotHeld,
    Refused,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.mode_queue import (
    MAX_CLAIMS_PER_ACQUIRE,
    Effects,
    ModeQueue,
    Waiter,
)
from aiorwlock_remote.core.pushed import PushedGrant, ReplyDelays, StoreTime, proof_of
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.value import replace
from tests.core.mode_queues import Sim, Visit
from tests.examples_of_histories import many

VISITS = st.lists(
    st.builds(
        Visit,
        st.sampled_from(["ann", "bob", "cid"]),
        st.sampled_from(LOCK_MODES),
        st.integers(0, 500),
        st.integers(0, 50) | st.just(400),
        st.none() | st.integers(0, 1_000),
    ),
    min_size=3,
    max_size=24,
)


@pytest.mark.parametrize("pushes", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
@settings(max_examples=many(200))
@given(st.integers(0, 2**32), VISITS)
def test_whatever_happens_nothing_is_left_behind(
    faulty: bool, pushes: bool, seed: int, visits: list[Visit]
) -> None:
    """Tasks that stay are granted in order, one writer at a time, under fences that
    never fall; those that leave leave nothing.
    """
    sim = Sim(seed, faulty, pushes)
    sim.run(visits)
    for task in sim.tasks:
        stays = task.visit.patience is None
        allowed = {"served", *(["left"] * (not stays)), *(["error"] * faulty)}
        if faulty and pushes:
            allowed.add("lost")
        assert task.outcome in allowed, task
    for served in sim.served.values():
        arrivals = [(visits[number].after, number) for number in served]
        assert arrivals == sorted(arrivals)
    assert sim.record.grants == ()
    assert sim.record.queue == ()
    if not faulty:
        assert sim.longest_idle < 0.1, "somebody had to poll"


def lets_all_in(patch: pytest.MonkeyPatch) -> None:
    """Break the bound: each message is believed, for ever."""
    patch.setattr(StoreTime, "bounds", lambda *_: (1e12, 0.0))


def counts_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    """Break the bound: it counts from when the reply came.

    Who sees its replies late enters by no message, which would hide the fault.
    """
    heeds_no_delay(patch)
    answered = ModeQueue.answered

    def careless(
        queue: ModeQueue, answer: Answer, sent_at: float, now: float, random: float
    ) -> Effects:
        effects = answered(queue, answer, sent_at, now, random)
        if queue._store_time is not None:
            queue._store_time = replace(queue._store_time, sent_at=now)
        return effects

    patch.setattr(ModeQueue, "answered", careless)


def heeds_no_delay(patch: pytest.MonkeyPatch) -> None:
    """Confirmations may come too late, so that grants are lost: nothing is broken."""
    patch.setattr(mode_queue, "MIN_ROUND_TRIPS_LEFT", 0)
    patch.setattr(mode_queue, "MIN_DELAYS_LEFT", 0)


def needs_no_proof(patch: pytest.MonkeyPatch) -> None:
    """Break the proof: a forged message is believed."""
    patch.setattr(PushedGrant, "proves", lambda *_: True)


@pytest.mark.parametrize(
    "break_rule", [lets_all_in, counts_from_the_reply, needs_no_proof]
)
def test_a_broken_rule_of_belief_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    break_rule: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """Two are inside, a fence falls, or a task believes for too long."""
    break_rule(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(2_000):
            chance = Random(seed)
            visits = [
                Visit(
                    chance.choice(["ann", "bob", "cid"]),
                    chance.choice([Mode.WRITE, Mode.WRITE, Mode.READ]),
                    chance.randrange(500),
                    chance.choice([chance.randrange(50), 400]),
                    chance.choice([None, None, chance.randrange(1_000)]),
                )
                for _ in range(16)
            ]
            Sim(seed, faulty=True, pushes=True).run(visits)


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
    effects = it.answered(Granted((grant("a"),), 5), 1.0, 1.1, 0.5)
    assert [w.ticket for w in effects.served] == ["a"]
    assert effects.send is not None
    assert getattr(effects.send, "more", None) == 1


def test_a_task_behind_a_bar_asks_later() -> None:
    """A writer was held back: it is sent after "b" and before "c"."""
    it = lane(Mode.READ)
    it.join(waiter("a"))
    it.join(waiter("b"))
    assert it.unsent
    it.bar()
    it.join(waiter("c"))
    effects = it.answered(Granted((grant("a"),), 5), 1.0, 1.1, 0.5)
    assert isinstance(effects.send, Acquire)
    assert [claim.ticket for claim in effects.send.claims] == ["b"]
    assert (effects.send.more, effects.send.waiting) == (0, 2)
    assert it.lift() is None
    assert it.unsent
    effects = it.answered(Granted((grant("b"),), 5), 1.2, 1.3, 0.5)
    assert isinstance(effects.send, Acquire)
    assert [claim.ticket for claim in effects.send.claims] == ["c"]
    it.join(waiter("d"))
    effects = it.answered(Granted((grant("c"),), 5), 1.4, 1.5, 0.5)
    assert isinstance(effects.send, Acquire)
    assert [claim.ticket for claim in effects.send.claims] == ["d"], "the bar is lifted"


def test_readers_ask_together() -> None:
    """Readers of one policy ask together, up to a batch."""
    it = lane(Mode.READ)
    it.join(waiter("first"))
    for number in range(MAX_CLAIMS_PER_ACQUIRE + 3):
        it.join(waiter(f"r{number}"))
    it.join(waiter("other", Policy.READER))
    effects = it.answered(Granted((grant("first"),), 5), 1.0, 1.1, 0.5)
    assert effects.send is not None
    assert len(getattr(effects.send, "claims", ())) == MAX_CLAIMS_PER_ACQUIRE
    assert getattr(effects.send, "more", None) == 4


def permit(ticket: str, limit: int = 2) -> Waiter:
    one = waiter(ticket)
    one.limit = limit
    return one


def tickets(command: Acquire | Withdraw | None) -> list[str]:
    assert isinstance(command, Acquire)
    return [claim.ticket for claim in command.claims]


def test_one_request_for_as_many_permits_as_tasks_wait() -> None:
    """Those that got none wait on; the request says how many wait."""
    it = lane(Mode.PERMIT)
    for name in ("a", "b", "c", "d"):
        it.join(permit(name))
    effects = it.answered(Granted((grant("a"),), 5, placed=False), 1.0, 1.1, 0.5)
    assert [w.ticket for w in effects.served] == ["a"]
    assert tickets(effects.send) == ["b", "c", "d"]
    assert isinstance(effects.send, Acquire)
    assert (effects.send.limit, effects.send.waiting, effects.send.more) == (2, 3, 0)
    effects = it.answered(Granted((grant("b"),), 6, placed=True), 1.2, 1.3, 0.5)
    assert [w.ticket for w in effects.served] == ["b"]
    assert effects.send is None
    assert it.watching
    assert tickets(it.wake()) == ["c", "d"]
    lost = it.failed(1.4, 0.5)
    assert not lost.turned_away, "they have an entry in the store"


def test_permits_of_another_limit_are_asked_for_next() -> None:
    """One request has one limit; the order stays that of arrival."""
    it = lane(Mode.PERMIT)
    it.join(permit("a", 5))
    for name, limit in (("b", 5), ("strict", 1), ("c", 5)):
        it.join(permit(name, limit))
    effects = it.answered(Granted((grant("a"),), 5), 1.0, 1.1, 0.5)
    assert tickets(effects.send) == ["b"]
    effects = it.answered(Granted((grant("b"),), 6, placed=True), 1.2, 1.3, 0.5)
    command = it.wake()
    assert tickets(command) == ["strict"]
    assert isinstance(command, Acquire)
    assert (command.limit, command.more) == (1, 1)


def test_a_waiter_asks_again_when_woken_or_at_its_poll() -> None:
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
    effects = it.answered(Waiting(1, None), 1.7, 1.8, 0.0)
    assert effects.send is not None


def test_a_waiter_far_from_the_head_polls_less_often() -> None:
    """And its entry lives for three of its polls."""
    it = lane()
    first = it.join(waiter("a"))
    assert first is not None
    it.answered(Waiting(800, None), 1.0, 1.0, 0.0)
    assert it.due == 2.0, "the entry it has lives for the usual time"
    far = it.ask()
    assert far is not None
    assert far.entry_ttl / first.entry_ttl == pytest.approx(5.0 / 1.5)
    it.answered(Waiting(800, 300_000), 2.0, 2.0, 1.0)
    assert it.due == pytest.approx(2.0 + 5.0)
    assert it.wake() is not None
    it.answered(Waiting(3, 300_000), 3.0, 3.0, 0.0)
    assert it.due == pytest.approx(3.3)
    near = it.ask()
    assert near is not None
    assert near.entry_ttl == first.entry_ttl


def test_waiters_for_permits_count_permits_granted_together() -> None:
    it = lane(Mode.PERMIT)
    task = waiter("a")
    task.limit = 10
    it.join(task)
    it.answered(Waiting(80, None, limit=10), 1.0, 1.0, 0.0)
    it.ask()
    it.answered(Waiting(80, None, limit=10), 2.0, 2.0, 0.0)
    assert it.due == 3.0


def test_a_task_that_joins_an_entry_waits_through_an_outage() -> None:
    """A task that joins an entry waits through an outage as those before it do."""
    it = lane()
    it.join(first := waiter("a"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.0)
    assert it.join(second := waiter("b")) is None
    it.leave(first)
    assert it.ask() is not None
    assert it.failed(2.5, 0.5).turned_away == ()
    assert list(it.waiters) == [second]


def test_a_task_that_joins_before_an_entry_is_known_waits_through_an_outage() -> None:
    """Also if the reply that tells of the entry is the grant of another task."""
    it = lane()
    it.join(first := waiter("a"))
    it.join(second := waiter("b"))
    granted = Granted((grant("a"),), 5, placed=True)
    assert it.answered(granted, 1.0, 1.1, 0.5).served == (first,)
    assert it.ask() is not None
    assert it.failed(2.5, 0.5).turned_away == ()
    assert list(it.waiters) == [second]


def test_a_declined_request_is_repeated_while_there_is_time() -> None:
    """A request that was certainly not carried out leaves nothing to withdraw."""
    it = lane()
    it.join(first := waiter("a"))
    first.until = 3.0
    assert it.failed(1.0, 0.5, repeat=True).turned_away == ()
    assert it.due is not None
    assert it.due < first.until
    assert it.ask() is not None
    assert it.failed(2.99, 0.5, repeat=True).turned_away == (first,)
    assert it.leave(first) is None


def test_the_last_reply_to_a_waiter() -> None:
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


def test_an_earlier_reply_is_not_to_this_task() -> None:
    """The store, which replied to an earlier task, may have fallen silent since."""
    it = lane()
    it.join(first := waiter("a"))
    it.answered(before := Waiting(1, 300_000, ("somebody",)), 1.0, 1.1, 0.5)
    assert it.ask() is not None
    it.join(late := waiter("b"))
    assert it.last_reply_to(first) is before
    assert it.last_reply_to(late) is None
    it.answered(after := Waiting(1, 200_000, ("somebody",)), 2.0, 2.1, 0.5)
    assert it.last_reply_to(late) is after


def test_a_grant_whose_answer_was_lost_is_anchored_at_its_own_request() -> None:
    """A grant in the reply to a repeated request counts from the first request."""
    it = lane()
    it.join(one := waiter("a"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.0)
    it.ask()
    it.failed(2.5, 0.5)
    assert list(it.waiters) == [one], "it has an entry: waits on"
    it.ask()
    late = Granted((grant("a", since=2_000_000),), now=4_000_000)
    effects = it.answered(late, sent_at=4.0, now=4.1, random=0.5)
    assert effects.served == (one,)
    assert one.sent_at == pytest.approx(2.0)


def test_without_a_queue_entry_a_failure_is_raised() -> None:
    """A task without an entry is turned away; the next one asks after a pause."""
    it = lane()
    it.join(one := waiter("a"))
    it.join(waiter("b"))
    effects = it.failed(1.0, 0.5)
    assert effects.turned_away == (one,)
    assert it.due is not None
    assert it.due > 1.0


def test_a_full_queue_turns_away() -> None:
    """A task that is turned away lets the next one ask."""
    it = lane()
    it.join(one := waiter("a", limit=1))
    it.join(waiter("b", limit=9))
    effects = it.answered(Refused(FULL), 1.0, 1.1, 0.5)
    assert effects.turned_away == (one,)
    assert getattr(effects.send, "max_waiters", None) == 9


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
    effects = it.answered(Granted((grant("c"),), 5, placed=True), 1.0, 1.1, 0.5)
    assert (effects.served, effects.send) == ((), None)
    assert it.idle


def test_a_task_that_leaves_after_a_lost_reply_is_withdrawn() -> None:
    """Its ticket may have been granted, although no request is under way."""
    it = lane()
    it.join(one := waiter("a"))
    it.join(waiter("b"))
    it.answered(Waiting(1, None), 1.0, 1.1, 0.5)
    it.ask()
    it.failed(2.0, 0.5)
    assert it.leave(one) == Withdraw("g", Mode.WRITE, ("a",), keep=True)


def test_a_place_that_may_have_been_made_is_given_back() -> None:
    """The last task gives back an entry that no reply ever reported."""
    it = lane(Mode.READ)
    it.join(waiter("a"))
    it.join(two := waiter("b"))
    it.failed(1.0, 0.5)
    assert it.leave(two) == Withdraw("g", Mode.READ)
    assert it.leave(two) is None


def test_an_entry_that_may_exist_is_given_back_after_another_failure() -> None:
    """The task that is turned away last withdraws nothing: its request was not done."""
    it = lane()
    it.join(waiter("a"))
    it.join(two := waiter("b"))
    assert it.failed(1.0, 0.5).send is None
    assert it.ask() is not None
    effects = it.failed(2.0, 0.5, repeat=True)
    assert (effects.turned_away, effects.send) == ((two,), Withdraw("g", Mode.WRITE))
    assert it.leave(two) is None


def test_a_place_made_for_tasks_that_left_is_given_back() -> None:
    """The tasks left while the request was under way."""
    it = lane()
    it.join(waiter("a"))
    it.answered(Waiting(0, None), 1.0, 1.1, 0.5)
    it.join(two := waiter("b"))
    it.ask()
    assert it.leave(two) is None
    effects = it.answered(Granted((grant("a"),), 5, placed=True), 1.0, 1.1, 0.5)
    assert effects.send == Withdraw("g", Mode.WRITE)


def test_the_place_of_those_who_were_turned_away_is_given_back() -> None:
    """A task that comes next asks for itself, so the entry would stay unused."""
    it = lane()
    it.join(one := waiter("a"))
    it.answered(Waiting(0, None), 1.0, 1.1, 0.5)
    it.ask()
    one.replied = False  # as the wait queue does when an error will not pass
    effects = it.failed(2.0, 0.5)
    assert (effects.turned_away, effects.send) == ((one,), Withdraw("g", Mode.WRITE))
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


# ------------------------------------------------------------------ pushed grants

WINDOW = 300_000
CLOCK = 50_000_000
"""The store's clock in the reply to a request that was sent at local time 1.0."""


def pushing(mode: Mode = Mode.WRITE, delays: ReplyDelays | None = None) -> ModeQueue:
    """Return a queue of client "g" at a store that pushes grants."""
    return ModeQueue("g", mode, PollPolicy(claim_window=0.3, pushes=True), delays)


def queued(
    *tickets: str, took: float = 0.001, delays: ReplyDelays | None = None
) -> tuple[ModeQueue, list[Waiter]]:
    """Return a queue whose tasks wait in the store since local time 1.0."""
    it = pushing(delays=delays)
    waiters = [waiter(ticket) for ticket in tickets]
    for one in waiters:
        it.join(one)
    it.answered(Waiting(1, None, (), CLOCK), 1.0, 1.0 + took, 0.5)
    return it, waiters


def message(
    ticket: str, fence: int = 7, since: int = CLOCK + 900_000, window: int = WINDOW
) -> PushedGrant:
    """Return the message of a step that pushed a grant at local time 1.9."""
    proof = proof_of(ticket, since, since + window, fence)
    return PushedGrant(fence, since, since + window, proof)


def sent(effects: Effects | None) -> Acquire:
    """Return the acquire that is to be sent."""
    assert effects is not None
    assert isinstance(effects.send, Acquire)
    return effects.send


def test_a_pushed_grant_lets_the_first_writer_in() -> None:
    """The first writer has the lock, and the acquire that confirms it is sent."""
    it, (first, *_) = queued("a", "b", "c")
    effects = it.pushed(message("a"), 1.91)
    assert effects is not None
    assert effects.served == (first,)
    assert first.grant is not None
    assert (first.grant.ticket, first.grant.fence) == ("a", 7)
    assert first.sent_at == 1.91
    assert first.ends == pytest.approx(1.0 + 1.2 / 1.01 - 0.05)
    acquire = sent(effects)
    assert acquire.confirms
    assert [claim.ticket for claim in acquire.claims] == ["a"]
    assert (acquire.more, acquire.push) == (2, True)
    assert acquire.following is not None
    assert acquire.following.ticket == "b"
    assert it.pushed(message("a"), 1.92) is None, "a doubled message"
    assert [w.ticket for w in it.waiters] == ["b", "c"]


def test_a_process_with_late_replies_asks_instead_of_confirming() -> None:
    """A late confirmation of one lock counts for all locks of the process."""
    delays = ReplyDelays()
    one, _ = queued("a", "b", delays=delays)
    sent(one.pushed(message("a"), 1.91))
    held = Granted((replace(grant("a", CLOCK + 920_000), fence=7),), CLOCK + 920_000)
    one.answered(held, 1.91, 2.11, 0.5)
    another, _ = queued("c", delays=delays)
    assert another.pushed(message("c"), 1.91) is None
    late = 0
    while queued("d", delays=delays)[0].pushed(message("d"), 1.91) is None:
        late += 1
    assert 3 < late < 10


def test_a_message_that_was_read_late_lets_nobody_in() -> None:
    """By the store's clock: the reply to its confirmation would be late as well."""
    early, late = (queued("a")[0].pushed(message("a"), 1.9 + d) for d in (0.05, 0.1))
    assert early is not None
    assert late is None


def test_the_confirmed_grant_counts_from_its_request() -> None:
    """The next task waits in the new entry, and its ticket may be pushed now."""
    it, (first, second) = queued("a", "b")
    sent(it.pushed(message("a"), 1.91))
    held = replace(grant("a", CLOCK + 920_000), fence=7)
    confirmed = Granted((held,), CLOCK + 920_000, placed=True)
    effects = it.answered(confirmed, 1.92, 1.93, 0.5)
    assert (effects.confirmed, effects.served, effects.lost) == (first, (), None)
    assert (first.sent_at, first.ends) == (1.92, None)
    assert it.due is not None
    assert it.leave(second) == Withdraw("g", Mode.WRITE, ("b",), keep=False)


def test_a_grant_that_a_renewal_confirmed_first_counts_from_its_message() -> None:
    """The keeper's renewal arrived before the acquire, which extended nothing."""
    it, (first,) = queued("a")
    sent(it.pushed(message("a"), 1.91))
    pushed = replace(grant("a", CLOCK + 900_000), fence=7)
    effects = it.answered(Granted((pushed,), CLOCK + 1_100_000), 2.0, 2.1, 0.5)
    assert effects.confirmed is first
    assert first.sent_at == pytest.approx(1.8)


@pytest.mark.parametrize("placed", [True, False])
def test_a_grant_that_is_not_confirmed_is_lost(placed: bool) -> None:
    """The confirmation queued nobody, so the next task asks for itself."""
    it, (first, second) = queued("a", "b")
    if not placed:
        it.leave(second)
    sent(it.pushed(message("a"), 1.91))
    effects = it.answered(NotHeld("forced"), 1.92, 1.93, 0.5)
    assert (effects.lost, effects.stray) == ((first, "forced"), False)
    if placed:
        assert [c.ticket for c in sent(effects).claims] == ["b"]
        assert not sent(effects).confirms
    else:
        assert effects.send == Withdraw("g", Mode.WRITE)


def test_a_grant_under_another_fence_is_lost_and_given_back() -> None:
    """What the task wrote with the message's fence is stale, whatever is held now."""
    it, (first,) = queued("a")
    sent(it.pushed(message("a", fence=8), 1.91))
    effects = it.answered(Granted((grant("a"),), 5), 1.92, 1.93, 0.5)
    assert (effects.lost, effects.stray, effects.served) == (
        (first, "expired"),
        True,
        (),
    )


def test_a_failed_confirmation_turns_nobody_away() -> None:
    """The task's lease decides; the others wait on, and ask for themselves."""
    it, (first, second) = queued("a", "b")
    sent(it.pushed(message("a"), 1.91))
    effects = it.failed(2.5, 0.5)
    assert (effects.turned_away, effects.lost, effects.confirmed) == ((), None, None)
    assert first.ends is not None
    assert it.due is not None
    assert it.leave(second) == Withdraw("g", Mode.WRITE, ("b",), keep=False)
    assert it.idle


@pytest.mark.parametrize(
    "why",
    [
        "forged",
        "another's ticket",
        "too late",
        "too little is left",
        "the link is slow",
        "a long margin",
        "from the future",
    ],
)
def test_a_message_that_is_not_believed_is_a_wake_up(why: str) -> None:
    """Each for one reason; without it the message lets the task in."""
    it, (first, _) = queued("a", "b", took=0.1 if why == "the link is slow" else 0.001)
    heard, now = message("a"), 1.91
    if why == "forged":
        heard = replace(heard, proof=proof_of("?", heard.since, heard.expires, 7))
    elif why == "another's ticket":
        heard = message("b")
    elif why == "too late":
        now = 2.3
    elif why == "too little is left":
        now = 2.05
    elif why == "a long margin":
        first.margin = 0.3
    elif why == "from the future":
        heard = message("a", since=CLOCK + 1_000_000)
    assert it.pushed(heard, now) is None
    assert [w.ticket for w in it.waiters] == ["a", "b"]
    assert it.wake() is not None


def test_without_a_reply_no_message_is_believed() -> None:
    """Nothing is known of the store's clock, and no ticket of ours is in its queue."""
    it = pushing()
    assert it.pushed(message("a"), 1.91) is None
    it.join(waiter("a"))
    it.failed(1.5, 0.5, repeat=True)
    it.waiters.append(waiter("a"))
    assert it.pushed(message("a"), 1.91) is None


def test_no_message_is_believed_during_a_request() -> None:
    """The request finds the pushed grant as well, and its reply decides."""
    it, _ = queued("a", "b")
    assert it.ask() is not None
    assert it.pushed(message("a"), 1.91) is None
    assert it.wake() is None
    effects = it.answered(Waiting(0, 0, (), CLOCK), 1.9, 1.92, 0.5)
    assert sent(effects).claims[0].ticket == "a"


def test_after_a_failure_no_message_is_believed() -> None:
    """Until the next reply: another server may carry on, by another clock."""
    it, _ = queued("a", "b")
    assert it.ask() is not None
    it.failed(1.8, 0.5)
    assert it.pushed(message("a"), 1.91) is None
    assert it.wake() is not None
    it.answered(Waiting(0, None, (), CLOCK + 920_000), 1.92, 1.93, 0.5)
    assert it.pushed(message("a"), 1.94) is not None


def test_the_bound_of_the_newest_reply_counts() -> None:
    """That of the clock itself, if the time of the step was a lower bound."""
    it, _ = queued("a", "b", "c")
    assert it.ask() is not None
    late = Granted((grant("a"),), 5, placed=True, latest=CLOCK + 1_190_000)
    it.answered(late, 1.9, 1.901, 0.5)
    assert it.pushed(message("b"), 1.91) is None, "the clock is near the end"
    assert it.pushed(message("b", window=WINDOW + 700_000), 1.91) is not None


def test_a_grant_that_a_read_found_is_believed_by_both_bounds() -> None:
    """The read may have come from another server, whose clock is ahead or behind."""
    it, (first, _) = queued("a", "b")
    behind = StoreTime(CLOCK + 890_000, 1.90)
    effects = it.pushed(replace(message("a"), seen=behind), 1.91)
    assert effects is not None
    # By this read 0.31 s were left when it was sent; by the reply 0.29 s.
    assert first.ends == pytest.approx(1.0 + 1.2 / 1.01 - 0.05)
    it, (first, _) = queued("a", "b")
    ahead = StoreTime(CLOCK + 1_000_000, 1.90)
    effects = it.pushed(replace(message("a"), seen=ahead), 1.91)
    assert effects is not None
    assert first.ends == pytest.approx(1.90 + 0.2 / 1.01 - 0.05)
    it, _ = queued("a", "b")
    near_the_end = StoreTime(CLOCK + 1_150_000, 1.90)
    assert it.pushed(replace(message("a"), seen=near_the_end), 1.91) is None
    assert it.wake() is not None


def test_a_read_does_not_replace_the_reply() -> None:
    """Without it no ticket of ours is in the store."""
    it = pushing()
    it.join(waiter("a"))
    it.failed(1.5, 0.5, repeat=True)
    seen = StoreTime(CLOCK + 900_000, 1.90)
    it.waiters.append(waiter("a"))
    assert it.pushed(replace(message("a"), seen=seen), 1.91) is None


def test_the_confirmation_is_made_ahead() -> None:
    """While one task waits, and no longer."""
    it, _ = queued("a")
    ready = it.confirmation()
    assert ready is not None
    effects = it.pushed(message("a"), 1.91)
    assert effects is not None
    assert effects.send is ready
    plain, _ = queued("a")
    effects = plain.pushed(message("a"), 1.91)
    assert effects is not None
    assert effects.send == ready


def test_a_confirmation_that_was_made_for_fewer_tasks_is_not_sent() -> None:
    it, _ = queued("a")
    ready = it.confirmation()
    it.join(waiter("b"))
    assert it.confirmation() is None, "the next task's claim goes along"
    it, _ = queued("a")
    ready = it.confirmation()
    it.join(waiter("b"))
    effects = it.pushed(message("a"), 1.91)
    assert effects is not None
    assert effects.send is not ready
    assert isinstance(effects.send, Acquire)
    assert effects.send.following == waiter("b").claim


def test_a_confirmation_that_was_made_for_another_task_is_not_sent() -> None:
    it, (first,) = queued("a")
    ready = it.confirmation()
    it.join(waiter("b"))
    it.leave(first)
    assert it.ask() is not None
    it.answered(Waiting(1, None, (), CLOCK), 1.0, 1.001, 0.5)
    effects = it.pushed(message("b"), 1.91)
    assert effects is not None
    assert effects.send is not ready
    assert isinstance(effects.send, Acquire)
    assert effects.send.claims == (waiter("b").claim,)


def test_the_ticket_in_the_entry_is_withdrawn() -> None:
    """A task that leaves takes its ticket along, or the store would grant it."""
    it, (first, second) = queued("a", "b")
    assert it.leave(first) == Withdraw("g", Mode.WRITE, ("a",), keep=True)
    assert it.ask() is not None
    it.answered(Waiting(1, None, (), CLOCK), 1.5, 1.6, 0.5)
    assert it.leave(second) == Withdraw("g", Mode.WRITE, ("b",), keep=False)


def test_the_next_tasks_ticket_is_withdrawn_while_it_is_under_way() -> None:
    """The acquire before may put it into the client's new entry, or has."""
    for fails in (False, True):
        it, (_, second, third) = queued("a", "b", "c")
        assert it.ask() is not None
        if fails:
            it.failed(2.0, 0.5)
        assert it.leave(second) == Withdraw("g", Mode.WRITE, ("b",), keep=True)
        assert it.leave(third) is None


@pytest.mark.parametrize("kind", ["no end", "lock delay", "reader"])
def test_a_claim_that_is_never_pushed_is_not_withdrawn(kind: str) -> None:
    """The store's entry does not take its ticket."""
    mode = Mode.READ if kind == "reader" else Mode.WRITE
    it = pushing(mode)
    lease = None if kind == "no end" else 10_000_000
    delay = 5 if kind == "lock delay" else 0
    it.join(one := Waiter(Claim("a", lease, lock_delay=delay), Policy.FAIR))
    it.join(waiter("b"))
    it.answered(Waiting(1, None, (), CLOCK), 1.0, 1.001, 0.5)
    assert it.leave(one) is None


def test_a_task_that_comes_during_a_confirmation_waits_for_the_reply() -> None:
    """One request at a time; the confirmation put no entry into the queue."""
    it, _ = queued("a")
    assert sent(it.pushed(message("a"), 1.91)).more == 0
    assert it.join(waiter("b")) is None
    held = replace(grant("a", CLOCK + 920_000), fence=7)
    effects = it.answered(Granted((held,), CLOCK + 920_000), 1.92, 1.93, 0.5)
    assert [claim.ticket for claim in sent(effects).claims] == ["b"]


def test_tasks_that_leave_during_a_confirmation_leave_no_entry() -> None:
    """The withdrawal follows the confirmation, which made the entry."""
    it, (_, second) = queued("a", "b")
    sent(it.pushed(message("a"), 1.91))
    assert it.leave(second) == Withdraw("g", Mode.WRITE, ("b",), keep=False)
    assert not it.idle
    held = replace(grant("a", CLOCK + 920_000), fence=7)
    effects = it.answered(
        Granted((held,), CLOCK + 920_000, placed=True), 1.92, 1.93, 0.5
    )
    assert effects.send is None
    assert it.idle
