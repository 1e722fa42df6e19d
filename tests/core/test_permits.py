"""The rules of a semaphore, one by one (``core/permits.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.core import codec
from aiorwlock_remote.core.commands import (
    AHEAD,
    BARRED,
    FULL,
    HELD,
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Forced,
    ForceRelease,
    Granted,
    IllegalCommand,
    NotHeld,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Upgrade,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import next_attempt, peek, skip_unreachable
from aiorwlock_remote.core.transition import transition as step_of
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BadRecord
from tests.core.resource import LEASE, MS, READ, SECOND, WALL, WRITE, Door, ask

PERMIT = Mode.PERMIT


def permits(
    gate: str,
    *tickets: str,
    limit: int = 2,
    more: int = 0,
    **options: Any,  # noqa: ANN401 - those of ``ask``
) -> Acquire:
    """Return a request for a permit for each ticket; without one, the client's name."""
    waiting = max(1, len(tickets)) + more
    return ask(
        gate, PERMIT, *tickets, limit=limit, more=more, waiting=waiting, **options
    )


class Semaphore(Door):
    """A semaphore with a limit of 2, unless a request says otherwise."""

    semaphore = True

    def take(self, gate: str, *tickets: str, **options: Any) -> Reply:  # noqa: ANN401 - those of ``ask``
        return self.do(permits(gate, *tickets, **options))

    def granted(self, gate: str, *tickets: str, **options: Any) -> list[str]:  # noqa: ANN401 - those of ``ask``
        """Return the tickets that a request was granted; none if it has to wait."""
        reply = self.take(gate, *tickets, **options)
        if isinstance(reply, Waiting):
            return []
        assert isinstance(reply, Granted)
        return [grant.ticket for grant in reply.grants]

    @property
    def waits(self) -> list[tuple[str, int]]:
        """The clients in the queue, and how many of their tasks wait."""
        return [(p.client_id, p.waiting) for p in self.state.queue]


def test_up_to_limit_hold_and_the_next_waits() -> None:
    door = Semaphore()
    assert door.granted("a") == ["a"]
    assert door.granted("b") == ["b"]
    assert door.granted("c") == []
    assert door.waits == [("c", 1)]
    door.release("a")
    assert door.woken == ["c"]
    assert door.granted("c") == ["c"]
    assert door.holders == ["b", "c"]


def test_in_the_order_of_arrival() -> None:
    """A client that comes later does not take what an earlier one waits for."""
    door = Semaphore()
    door.take("a", "a1", "a2")
    for gate in ("b", "c", "d"):
        assert door.granted(gate) == []
    door.release("a1")
    assert door.woken == ["b"]
    assert door.granted("c") == [], "b was offered it"
    door.release("a2")
    assert door.woken == ["c"], "as b waits for one only"
    assert door.granted("d") == []
    assert door.granted("c") == ["c"]
    assert door.granted("b") == ["b"]


def test_one_request_takes_what_is_free() -> None:
    """The tasks that are left wait at the tail, behind all others."""
    door = Semaphore()
    assert door.granted("a", "a1", "a2", "a3", limit=3) == ["a1", "a2", "a3"]
    assert door.granted("b", "b1", "b2", "b3", limit=3, more=2) == []
    assert door.granted("c", limit=3) == []
    door.release("a1")
    door.release("a2")
    reply = door.take("b", "b1", "b2", "b3", limit=3, more=2)
    assert isinstance(reply, Granted)
    assert reply.placed
    assert [grant.ticket for grant in reply.grants] == ["b1", "b2"]
    assert door.waits == [("c", 1), ("b", 3)]
    door.release("b1")
    assert door.woken == ["c"]


def test_a_request_that_is_served_leaves_no_entry() -> None:
    door = Semaphore()
    reply = door.take("a", "a1", "a2")
    assert isinstance(reply, Granted)
    assert not reply.placed
    assert door.waits == []


def test_each_permit_has_its_own_fence() -> None:
    """Greater than all before; at least the floor."""
    door = Semaphore()
    door.take("a", "a1", "a2", limit=3)
    door.take("b", limit=3)
    fences = [grant.fence for grant in door.state.grants]
    assert fences == sorted(set(fences))
    assert fences[1] == fences[0] + 1
    assert fences[0] >= WALL
    assert door.state.last == fences[-1]


def test_the_least_limit_of_holders_and_waiters_counts() -> None:
    door = Semaphore()
    door.take("a", limit=5)
    assert door.granted("strict", limit=1) == [], "it would have company"
    reply = door.take("b", limit=5)
    assert isinstance(reply, Waiting)
    assert reply.limit == 1, "the least that counts for it"
    door.release("a")
    assert door.woken == ["strict"]
    assert door.granted("strict", limit=1) == ["strict"]
    assert door.granted("b", limit=5) == [], "beside a holder that allows nobody"
    door.release("strict")
    assert door.granted("b", limit=5) == ["b"]
    assert door.granted("c", limit=5) == ["c"]


def test_a_later_strict_client_changes_nothing_for_those_before() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("b")
    door.take("strict", limit=1)
    door.release("a1")
    assert door.woken == ["b"]
    assert door.granted("b") == ["b"]


def test_who_misses_its_claim_reserves_nothing() -> None:
    """It keeps its place, and has a longer window the next time."""
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("dead")
    door.take("b")
    door.release("a1")
    assert door.woken == ["dead"]
    door.wait(200 * MS)
    assert door.granted("b") == ["b"]
    assert door.waits == [("dead", 1)]
    window = door.state.queue[0].claim_window
    assert door.granted("dead") == []
    assert door.state.queue[0].claim_window == 2 * window
    door.take("c")
    door.release("b")
    assert door.woken == ["dead"], "before c"


def test_the_end_of_a_window_offers_to_the_next() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("dead")
    door.take("b")
    door.release("a1")
    door.wait(200 * MS)
    door.do(Renew((("a2", LEASE),)))
    assert door.woken == ["b"]


def test_taken_by_an_earlier_client() -> None:
    """An offer is withdrawn if an earlier client, which was late, comes first."""
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("late")
    door.take("b")
    door.release("a1")
    door.wait(150 * MS)
    door.do(Renew((("a2", LEASE),)))
    assert door.woken == ["b"]
    assert door.granted("late") == ["late"]
    (entry,) = door.state.queue
    assert entry.client_id == "b"
    assert entry.claim_until is None
    door.wait(150 * MS)
    assert door.granted("b") == []
    assert door.state.queue[0].claim_window == entry.claim_window, "not doubled"


def test_a_repeated_request_has_the_same_permits() -> None:
    door = Semaphore()
    first = door.take("a", "a1", "a2", "a3")
    again = door.take("a", "a1", "a2", "a3")
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.grants == first.grants
    assert again.placed
    assert door.waits == [("a", 3)], "as the request says"
    door.release("a1")
    third = door.take("a", "a2", "a3")
    assert isinstance(third, Granted)
    assert [grant.ticket for grant in third.grants] == ["a2", "a3"]
    full = door.take("a", "a2", "a3")
    assert isinstance(full, Granted)
    assert full.grants == third.grants


def test_an_attempt_takes_no_place() -> None:
    def attempt(ticket: str) -> Reply:
        return door.do(Acquire((Claim(ticket, LEASE),), PERMIT, limit=2))

    door = Semaphore()
    assert isinstance(attempt("a"), Granted)
    assert isinstance(attempt("b"), Granted)
    full = attempt("c")
    assert isinstance(full, Refused)
    assert full.why == HELD
    assert full.retry_after is not None
    assert full.retry_after <= LEASE
    assert len(full.holders) == 2
    door.take("w")
    door.release("a")
    behind = attempt("c")
    assert isinstance(behind, Refused)
    assert behind.why == AHEAD
    assert door.waits == [("w", 1)]


def test_a_full_queue() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("b", "b1", "b2", "b3")
    reply = door.take("c", max_waiters=3)
    assert isinstance(reply, Refused)
    assert reply.why == FULL


def test_a_lease_that_ends_frees_its_permit() -> None:
    door = Semaphore()
    door.take("dead", lease=SECOND)
    door.take("b")
    reply = door.take("c")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is not None
    assert reply.retry_after < SECOND
    door.wait(reply.retry_after)
    assert door.granted("c") == ["c"]


def test_when_to_ask_again() -> None:
    """At the soonest end of a lease, or of a window before; never: not known."""
    door = Semaphore()
    door.take("a", "a1", "a2", lease=None)
    reply = door.take("b")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is None
    door.release("a1")
    waits = door.take("c")
    assert isinstance(waits, Waiting)
    assert waits.ahead == 1
    window = door.state.queue[0].claim_until
    assert window is not None
    assert waits.retry_after == window - door.now


def test_a_release_does_not_pass_others_with_its_own() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("b")
    reply = door.do(Release("a1", None, (permits("c"),)))
    assert isinstance(reply, Released)
    (answer,) = reply.then
    assert isinstance(answer, Waiting), "b is before it"
    assert door.woken == ["b"]


def test_a_release_carries_the_next_request() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("a", "a3")
    reply = door.do(Release("a1", None, (permits("a", "a3"),)))
    assert isinstance(reply, Released)
    (answer,) = reply.then
    assert isinstance(answer, Granted)
    assert door.holders == ["a2", "a3"]
    assert door.state.turns == 0, "nothing is vacated: nobody polls with INSERT"


def test_a_lock_delay_keeps_everybody_out() -> None:
    door = Semaphore()
    door.take("dead", lease=SECOND, lock_delay=2 * SECOND)
    door.wait(SECOND + MS)
    reply = door.take("b")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is not None
    assert SECOND < reply.retry_after <= 2 * SECOND
    attempt = door.do(Acquire((Claim("c", LEASE),), PERMIT, limit=2))
    assert isinstance(attempt, Refused)
    assert attempt.why == BARRED
    door.wait(2 * SECOND)
    assert door.granted("b") == ["b"]


def test_the_mutex_record_is_a_word() -> None:
    """Plain programs see the name as taken while any permit is held."""
    door = Semaphore()
    door.take("a", lease=SECOND)
    assert door.seat is not None
    assert door.seat.ticket == "permits"
    value = door.seat.value
    door.take("b", lease=5 * SECOND)
    assert door.seat.value == value
    assert door.seat.expires == door.now + 5 * SECOND
    door.release("a")
    assert door.seat is not None
    door.release("b")
    assert door.seat is None


def test_a_foreign_record_keeps_everybody_out() -> None:
    door = Semaphore()
    door.seat = MutexRecord("thief,5", None)
    reply = door.take("a")
    assert isinstance(reply, Waiting)
    assert reply.holders
    assert reply.holders[0].startswith("foreign")
    assert reply.retry_after is None
    door.seat = None
    assert door.granted("a") == ["a"]


COMMANDS: dict[str, Command] = {
    "acquire": permits("b"),
    "attempt": Acquire((Claim("b", LEASE),), PERMIT, limit=2),
    "release": Release("a"),
    "hand over": Release("a", None, (permits("b"),)),
    "renew": Renew((("a", LEASE),)),
    "withdraw": Withdraw("a", PERMIT, ("a",)),
    "adopt": Adopt("a", Claim("b", LEASE)),
}


@pytest.mark.parametrize("lease", [LEASE, None])
@pytest.mark.parametrize("kind", COMMANDS)
def test_permits_without_a_doorman_are_taken_out(kind: str, lease: int | None) -> None:
    """A clean-up job deleted the doorman: its word alone keeps nobody out."""
    door = Semaphore()
    door.take("a", lease=lease)
    door.record = None
    seen, foreign = peek(door.state, door.seat, door.now, semaphore=True)
    assert (seen.grants, foreign) == ((), None)
    reply = door.do(COMMANDS[kind])
    if isinstance(reply, Released):
        assert (reply.held, reply.reason) == (False, "forced")
    enters = kind in ("acquire", "attempt", "hand over")
    assert door.holders == (["b"] if enters else [])
    assert (door.seat is not None) is enters
    assert door.granted("c") == ["c"]


def test_the_word_of_another_time_is_taken_out() -> None:
    """The doorman that stands is of another time than the record: nobody holds."""
    door = Semaphore()
    door.take("a")
    door.seat = MutexRecord("permits,7")
    reply = door.do(Renew((("a", LEASE),)))
    assert reply == Renewed((NotHeld("stolen"),))
    step = step_of(door.record, door.seat, Renew(()), door.now, WALL, semaphore=True)
    assert step.seat is None
    assert door.granted("b", "b1", "b2") == ["b1", "b2"]


def test_a_lock_may_have_the_word_for_a_ticket() -> None:
    """In the record of a lock it is another program's ticket."""
    door = Door()
    door.seat = MutexRecord("permits,7")
    reply = door.ask("w", WRITE)
    assert isinstance(reply, Waiting)
    assert reply.foreign
    assert door.seat == MutexRecord("permits,7")


def test_a_lost_mutex_record_voids_all_permits() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.seat = None
    reply = door.do(Renew((("a1", LEASE),)))
    assert isinstance(reply, Renewed)
    (outcome,) = reply.outcomes
    assert getattr(outcome, "reason", "") == "forced"
    assert door.holders == []


def test_withdrawn_permits_are_free_and_the_entry_goes() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2", "a3")
    door.take("b")
    door.do(Withdraw("a", PERMIT, ("a1", "a2", "a3")))
    assert door.waits == [("b", 1)]
    assert door.holders == []
    assert door.woken == ["b"]


def test_a_holder_is_broken() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    first, second = door.state.grants
    reply = door.do(ForceRelease(first.holder, first.fence))
    assert isinstance(reply, Forced)
    assert reply.done
    assert door.state.grants == (second,)


def test_adopting_keeps_limit_and_company() -> None:
    """With a fence of its own, in one step."""
    door = Semaphore()
    door.take("a", "a1", "a2", limit=2)
    reply = door.do(Adopt("a1", Claim("new", LEASE)))
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.mode, grant.limit) == (PERMIT, 2)
    assert grant.fence == door.state.last > door.state.grants[1].fence
    assert door.holders == ["new", "a2"]


def test_no_moves_to_other_modes() -> None:
    door = Semaphore()
    door.take("a")
    before = door.state
    with pytest.raises(IllegalCommand):
        door.do(Downgrade("a", Claim("x", LEASE)))
    with pytest.raises(IllegalCommand):
        door.do(Upgrade("a", Claim("x", LEASE), "a"))
    with pytest.raises(IllegalCommand):
        door.do(ask("w", WRITE))
    assert door.state == before
    lock = Door()
    lock.ask("r", READ)
    with pytest.raises(IllegalCommand):
        lock.do(permits("a"))


@pytest.mark.parametrize(
    ("mode", "limit", "others"),
    [
        (PERMIT, 0, {}),
        (PERMIT, -1, {}),
        (READ, 1, {}),
        (WRITE, 1, {}),
        (PERMIT, 2, {"push": True}),
        (PERMIT, 2, {"confirms": True}),
        (PERMIT, 2, {"following": Claim("f", LEASE)}),
    ],
)
def test_commands_that_make_no_sense(
    mode: Mode, limit: int, others: dict[str, Any]
) -> None:
    with pytest.raises(IllegalCommand):
        Acquire((Claim("a", LEASE),), mode, client_id="a", limit=limit, **others)


def test_clients_that_cannot_be_reached_are_skipped() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("b")
    door.take("c")
    step = step_of(door.record, door.seat, Release("a1"), door.now, WALL + door.now)
    assert step.wakes == ("b",)
    again = skip_unreachable(step, ("b",), door.now, WALL + door.now)
    assert again.wakes == ("c",)


def test_a_poller_is_told_when_to_ask() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2", lease=5 * SECOND)
    door.take("b")
    door.take("c")
    end = door.state.grants[0].expires
    assert end is not None
    first = next_attempt(door.state, door.seat, "b", door.now)
    assert first is not None
    assert first[1] == end - door.now
    door.release("a1")
    assert (next_attempt(door.state, door.seat, "b", door.now) or ((), -1))[1] == 0
    later = next_attempt(door.state, door.seat, "c", door.now)
    assert later is not None
    assert 0 < later[1] <= 100 * MS
    live, foreign = peek(door.state, door.seat, door.now + 10 * SECOND, semaphore=True)
    assert (live.grants, foreign) == ((), None)


def test_what_is_stored_is_read_back() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2", lock_delay=5)
    door.take("b", limit=7)
    text = codec.dumps(door.state)
    assert codec.loads(text) == door.state
    assert '"limit":7' in text
    lock = Door()
    lock.ask("r", READ)
    assert "limit" not in codec.dumps(lock.state), "as before"


def test_a_record_without_a_limit_or_of_two_kinds_is_damaged() -> None:
    door = Semaphore()
    door.take("a", "a1", "a2")
    door.take("b")
    good = door.state
    for bad in (
        replace(good, grants=(replace(good.grants[0], limit=0),)),
        replace(good, grants=(replace(good.grants[0], limit=-1),)),
        replace(good, grants=(replace(good.grants[0], mode=READ),)),
        replace(good, queue=(replace(good.queue[0], limit=0),)),
        replace(good, queue=(replace(good.queue[0], mode=READ, limit=0),)),
        replace(good, queue=(replace(good.queue[0], ticket="t", lease=5),)),
    ):
        with pytest.raises(BadRecord):
            codec.loads(codec.dumps(bad))
