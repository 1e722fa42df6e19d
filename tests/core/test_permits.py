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
from aiorwlock_remote.core.transition import (
    next_attempt,
    peek,
    skip_unreachable,
    turns_ahead,
)
from aiorwlock_remote.core.transition import transition as step_of
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BadRecord
from tests.core.resource import LEASE, MS, READ, SECOND, WALL, WRITE, OneLock, ask

PERMIT = Mode.PERMIT


def permits(
    client_id: str,
    *tickets: str,
    limit: int = 2,
    more: int = 0,
    **options: Any,  # noqa: ANN401 - those of ``ask``
) -> Acquire:
    """Return a request for a permit for each ticket; without one, the client's name."""
    waiting = max(1, len(tickets)) + more
    return ask(
        client_id, PERMIT, *tickets, limit=limit, more=more, waiting=waiting, **options
    )


class Semaphore(OneLock):
    """A semaphore with a limit of 2, unless a request says otherwise."""

    semaphore = True

    def take(self, client_id: str, *tickets: str, **options: Any) -> Reply:  # noqa: ANN401 - those of ``ask``
        return self.do(permits(client_id, *tickets, **options))

    def granted(self, client_id: str, *tickets: str, **options: Any) -> list[str]:  # noqa: ANN401 - those of ``ask``
        """Return the tickets that a request was granted; none if it has to wait."""
        reply = self.take(client_id, *tickets, **options)
        if isinstance(reply, Waiting):
            return []
        assert isinstance(reply, Granted)
        return [grant.ticket for grant in reply.grants]

    @property
    def waits(self) -> list[tuple[str, int]]:
        """The clients in the queue, and how many of their tasks wait."""
        return [(p.client_id, p.waiting) for p in self.state.queue]


def test_up_to_limit_hold_and_the_next_waits() -> None:
    semaphore = Semaphore()
    assert semaphore.granted("a") == ["a"]
    assert semaphore.granted("b") == ["b"]
    assert semaphore.granted("c") == []
    assert semaphore.waits == [("c", 1)]
    semaphore.release("a")
    assert semaphore.woken == ["c"]
    assert semaphore.granted("c") == ["c"]
    assert semaphore.holders == ["b", "c"]


def test_in_the_order_of_arrival() -> None:
    """A client that comes later does not take what an earlier one waits for."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    for client_id in ("b", "c", "d"):
        assert semaphore.granted(client_id) == []
    semaphore.release("a1")
    assert semaphore.woken == ["b"]
    assert semaphore.granted("c") == [], "b was offered it"
    semaphore.release("a2")
    assert semaphore.woken == ["c"], "as b waits for one only"
    assert semaphore.granted("d") == []
    assert semaphore.granted("c") == ["c"]
    assert semaphore.granted("b") == ["b"]


def test_one_request_takes_what_is_free() -> None:
    """The tasks that are left wait at the tail, behind all others."""
    semaphore = Semaphore()
    assert semaphore.granted("a", "a1", "a2", "a3", limit=3) == ["a1", "a2", "a3"]
    assert semaphore.granted("b", "b1", "b2", "b3", limit=3, more=2) == []
    assert semaphore.granted("c", limit=3) == []
    semaphore.release("a1")
    semaphore.release("a2")
    reply = semaphore.take("b", "b1", "b2", "b3", limit=3, more=2)
    assert isinstance(reply, Granted)
    assert reply.placed
    assert [grant.ticket for grant in reply.grants] == ["b1", "b2"]
    assert semaphore.waits == [("c", 1), ("b", 3)]
    semaphore.release("b1")
    assert semaphore.woken == ["c"]


def test_a_request_that_is_served_leaves_no_entry() -> None:
    semaphore = Semaphore()
    reply = semaphore.take("a", "a1", "a2")
    assert isinstance(reply, Granted)
    assert not reply.placed
    assert semaphore.waits == []


def test_each_permit_has_its_own_fence() -> None:
    """Greater than all before; at least the floor."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", limit=3)
    semaphore.take("b", limit=3)
    fences = [grant.fence for grant in semaphore.state.grants]
    assert fences == sorted(set(fences))
    assert fences[1] == fences[0] + 1
    assert fences[0] >= WALL
    assert semaphore.state.last == fences[-1]


def test_the_least_limit_of_holders_and_waiters_counts() -> None:
    semaphore = Semaphore()
    semaphore.take("a", limit=5)
    assert semaphore.granted("strict", limit=1) == [], "it would have company"
    reply = semaphore.take("b", limit=5)
    assert isinstance(reply, Waiting)
    assert reply.limit == 1, "the least that counts for it"
    semaphore.release("a")
    assert semaphore.woken == ["strict"]
    assert semaphore.granted("strict", limit=1) == ["strict"]
    assert semaphore.granted("b", limit=5) == [], "beside a holder that allows nobody"
    semaphore.release("strict")
    assert semaphore.granted("b", limit=5) == ["b"]
    assert semaphore.granted("c", limit=5) == ["c"]


def test_a_later_strict_client_changes_nothing_for_those_before() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("b")
    semaphore.take("strict", limit=1)
    semaphore.release("a1")
    assert semaphore.woken == ["b"]
    assert semaphore.granted("b") == ["b"]


def test_a_missed_claim_reserves_nothing() -> None:
    """It keeps its entry, and has a longer window the next time."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("dead")
    semaphore.take("b")
    semaphore.release("a1")
    assert semaphore.woken == ["dead"]
    semaphore.wait(200 * MS)
    assert semaphore.granted("b") == ["b"]
    assert semaphore.waits == [("dead", 1)]
    window = semaphore.state.queue[0].claim_window
    assert semaphore.granted("dead") == []
    assert semaphore.state.queue[0].claim_window == 2 * window
    semaphore.take("c")
    semaphore.release("b")
    assert semaphore.woken == ["dead"], "before c"


def test_the_end_of_a_window_offers_to_the_next() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("dead")
    semaphore.take("b")
    semaphore.release("a1")
    semaphore.wait(200 * MS)
    semaphore.do(Renew((("a2", LEASE),)))
    assert semaphore.woken == ["b"]


def test_taken_by_an_earlier_client() -> None:
    """An offer is withdrawn if an earlier client, which was late, comes first."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("late")
    semaphore.take("b")
    semaphore.release("a1")
    semaphore.wait(150 * MS)
    semaphore.do(Renew((("a2", LEASE),)))
    assert semaphore.woken == ["b"]
    assert semaphore.granted("late") == ["late"]
    (entry,) = semaphore.state.queue
    assert entry.client_id == "b"
    assert entry.claim_until is None
    semaphore.wait(150 * MS)
    assert semaphore.granted("b") == []
    assert semaphore.state.queue[0].claim_window == entry.claim_window, "not doubled"


def test_a_repeated_request_has_the_same_permits() -> None:
    semaphore = Semaphore()
    first = semaphore.take("a", "a1", "a2", "a3")
    again = semaphore.take("a", "a1", "a2", "a3")
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.grants == first.grants
    assert again.placed
    assert semaphore.waits == [("a", 3)], "as the request says"
    semaphore.release("a1")
    third = semaphore.take("a", "a2", "a3")
    assert isinstance(third, Granted)
    assert [grant.ticket for grant in third.grants] == ["a2", "a3"]
    full = semaphore.take("a", "a2", "a3")
    assert isinstance(full, Granted)
    assert full.grants == third.grants


def test_an_attempt_takes_no_place() -> None:
    def attempt(ticket: str) -> Reply:
        return semaphore.do(Acquire((Claim(ticket, LEASE),), PERMIT, limit=2))

    semaphore = Semaphore()
    assert isinstance(attempt("a"), Granted)
    assert isinstance(attempt("b"), Granted)
    full = attempt("c")
    assert isinstance(full, Refused)
    assert full.why == HELD
    assert full.retry_after is not None
    assert full.retry_after <= LEASE
    assert len(full.holders) == 2
    semaphore.take("w")
    semaphore.release("a")
    behind = attempt("c")
    assert isinstance(behind, Refused)
    assert behind.why == AHEAD
    assert semaphore.waits == [("w", 1)]


def test_a_full_queue() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("b", "b1", "b2", "b3")
    reply = semaphore.take("c", max_waiters=3)
    assert isinstance(reply, Refused)
    assert reply.why == FULL


def test_a_lease_that_ends_frees_its_permit() -> None:
    semaphore = Semaphore()
    semaphore.take("dead", lease=SECOND)
    semaphore.take("b")
    reply = semaphore.take("c")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is not None
    assert reply.retry_after < SECOND
    semaphore.wait(reply.retry_after)
    assert semaphore.granted("c") == ["c"]


def test_when_to_ask_again() -> None:
    """At the soonest end of a lease, or of a window before; never: not known."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", lease=None)
    reply = semaphore.take("b")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is None
    semaphore.release("a1")
    waits = semaphore.take("c")
    assert isinstance(waits, Waiting)
    assert waits.ahead == 1
    window = semaphore.state.queue[0].claim_until
    assert window is not None
    assert waits.retry_after == window - semaphore.now


def test_a_release_does_not_pass_others_with_its_own() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("b")
    reply = semaphore.do(Release("a1", None, (permits("c"),)))
    assert isinstance(reply, Released)
    (answer,) = reply.then
    assert isinstance(answer, Waiting), "b is before it"
    assert semaphore.woken == ["b"]


def test_a_release_carries_the_next_request() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("a", "a3")
    reply = semaphore.do(Release("a1", None, (permits("a", "a3"),)))
    assert isinstance(reply, Released)
    (answer,) = reply.then
    assert isinstance(answer, Granted)
    assert semaphore.holders == ["a2", "a3"]
    assert semaphore.state.turns == 0, "nothing is vacated: nobody polls with INSERT"


def test_as_many_as_there_are_permits_are_one_turn() -> None:
    semaphore = Semaphore()
    semaphore.take("held", "h1", "h2")
    for client_id in "abcde":
        semaphore.take(client_id)
    turns = [turns_ahead(semaphore.state, client_id) for client_id in "abcde"]
    assert turns == [0, 0, 1, 1, 2]


def test_a_lock_delay_keeps_everybody_out() -> None:
    semaphore = Semaphore()
    semaphore.take("dead", lease=SECOND, lock_delay=2 * SECOND)
    semaphore.wait(SECOND + MS)
    reply = semaphore.take("b")
    assert isinstance(reply, Waiting)
    assert reply.retry_after is not None
    assert SECOND < reply.retry_after <= 2 * SECOND
    attempt = semaphore.do(Acquire((Claim("c", LEASE),), PERMIT, limit=2))
    assert isinstance(attempt, Refused)
    assert attempt.why == BARRED
    semaphore.wait(2 * SECOND)
    assert semaphore.granted("b") == ["b"]


def test_at_the_end_of_a_lock_delay_permits_are_offered() -> None:
    semaphore = Semaphore()
    semaphore.take("dead", lease=SECOND, lock_delay=SECOND)
    end = semaphore.now + 2 * SECOND
    semaphore.now = end - 2 * MS
    semaphore.take("b")
    assert semaphore.woken == []
    semaphore.take("c")
    assert semaphore.now == end
    assert "b" in semaphore.woken


def test_the_mutex_record_is_a_word() -> None:
    """Plain programs see the name as taken while any permit is held."""
    semaphore = Semaphore()
    semaphore.take("a", lease=SECOND)
    assert semaphore.seat is not None
    assert semaphore.seat.ticket == "permits"
    value = semaphore.seat.value
    semaphore.take("b", lease=5 * SECOND)
    assert semaphore.seat.value == value
    assert semaphore.seat.expires == semaphore.now + 5 * SECOND
    semaphore.release("a")
    assert semaphore.seat is not None
    semaphore.release("b")
    assert semaphore.seat is None


def test_a_foreign_record_keeps_everybody_out() -> None:
    semaphore = Semaphore()
    semaphore.seat = MutexRecord("thief,5", None)
    reply = semaphore.take("a")
    assert isinstance(reply, Waiting)
    assert reply.holders
    assert reply.holders[0].startswith("foreign")
    assert reply.retry_after is None
    semaphore.seat = None
    assert semaphore.granted("a") == ["a"]


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
    semaphore = Semaphore()
    semaphore.take("a", lease=lease)
    semaphore.record = None
    seen, foreign = peek(semaphore.state, semaphore.seat, semaphore.now, semaphore=True)
    assert (seen.grants, foreign) == ((), None)
    reply = semaphore.do(COMMANDS[kind])
    if isinstance(reply, Released):
        assert (reply.held, reply.reason) == (False, "forced")
    enters = kind in ("acquire", "attempt", "hand over")
    assert semaphore.holders == (["b"] if enters else [])
    assert (semaphore.seat is not None) is enters
    assert semaphore.granted("c") == ["c"]


def test_the_word_of_another_time_is_taken_out() -> None:
    """The doorman that stands is of another time than the record: nobody holds."""
    semaphore = Semaphore()
    semaphore.take("a")
    semaphore.seat = MutexRecord("permits,7")
    reply = semaphore.do(Renew((("a", LEASE),)))
    assert reply == Renewed((NotHeld("stolen"),))
    step = step_of(
        semaphore.record, semaphore.seat, Renew(()), semaphore.now, WALL, semaphore=True
    )
    assert step.seat is None
    assert semaphore.granted("b", "b1", "b2") == ["b1", "b2"]


def test_a_lock_may_have_the_word_for_a_ticket() -> None:
    """In the record of a lock it is another program's ticket."""
    lock = OneLock()
    lock.seat = MutexRecord("permits,7")
    reply = lock.ask("w", WRITE)
    assert isinstance(reply, Waiting)
    assert reply.foreign
    assert lock.seat == MutexRecord("permits,7")


def test_a_lost_mutex_record_voids_all_permits() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.seat = None
    reply = semaphore.do(Renew((("a1", LEASE),)))
    assert isinstance(reply, Renewed)
    (outcome,) = reply.outcomes
    assert getattr(outcome, "reason", "") == "forced"
    assert semaphore.holders == []


def test_withdrawn_permits_are_free_and_the_entry_goes() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", "a3")
    semaphore.take("b")
    semaphore.do(Withdraw("a", PERMIT, ("a1", "a2", "a3")))
    assert semaphore.waits == [("b", 1)]
    assert semaphore.holders == []
    assert semaphore.woken == ["b"]


def test_a_holder_is_broken() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    first, second = semaphore.state.grants
    reply = semaphore.do(ForceRelease(first.holder, first.fence))
    assert isinstance(reply, Forced)
    assert reply.done
    assert semaphore.state.grants == (second,)


def test_adopting_keeps_limit_and_company() -> None:
    """With a fence of its own, in one step."""
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", limit=2)
    reply = semaphore.do(Adopt("a1", Claim("new", LEASE)))
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.mode, grant.limit) == (PERMIT, 2)
    assert grant.fence == semaphore.state.last > semaphore.state.grants[1].fence
    assert semaphore.holders == ["new", "a2"]


def test_no_moves_to_other_modes() -> None:
    semaphore = Semaphore()
    semaphore.take("a")
    before = semaphore.state
    with pytest.raises(IllegalCommand):
        semaphore.do(Downgrade("a", Claim("x", LEASE)))
    with pytest.raises(IllegalCommand):
        semaphore.do(Upgrade("a", Claim("x", LEASE), "a"))
    with pytest.raises(IllegalCommand):
        semaphore.do(ask("w", WRITE))
    assert semaphore.state == before
    lock = OneLock()
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
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("b")
    semaphore.take("c")
    step = step_of(
        semaphore.record,
        semaphore.seat,
        Release("a1"),
        semaphore.now,
        WALL + semaphore.now,
    )
    assert step.wakes == ("b",)
    again = skip_unreachable(step, ("b",), semaphore.now, WALL + semaphore.now)
    assert again.wakes == ("c",)


def test_a_poller_learns_when_to_ask() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", lease=5 * SECOND)
    semaphore.take("b")
    semaphore.take("c")
    end = semaphore.state.grants[0].expires
    assert end is not None
    first = next_attempt(semaphore.state, semaphore.seat, "b", semaphore.now)
    assert first is not None
    assert first[1] == end - semaphore.now
    semaphore.release("a1")
    assert (
        next_attempt(semaphore.state, semaphore.seat, "b", semaphore.now) or ((), -1)
    )[1] == 0
    later = next_attempt(semaphore.state, semaphore.seat, "c", semaphore.now)
    assert later is not None
    assert 0 < later[1] <= 100 * MS
    live, foreign = peek(
        semaphore.state, semaphore.seat, semaphore.now + 10 * SECOND, semaphore=True
    )
    assert (live.grants, foreign) == ((), None)


def test_a_stored_doorman_is_read_back_equal() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2", lock_delay=5)
    semaphore.take("b", limit=7)
    text = codec.dumps(semaphore.state)
    assert codec.loads(text) == semaphore.state
    assert '"limit":7' in text
    lock = OneLock()
    lock.ask("r", READ)
    assert "limit" not in codec.dumps(lock.state), "as before"


def test_a_record_without_a_limit_or_of_two_kinds_is_damaged() -> None:
    semaphore = Semaphore()
    semaphore.take("a", "a1", "a2")
    semaphore.take("b")
    good = semaphore.state
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
