"""Pushed grants: an offer to a writer's entry with a ticket grants it."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from aiorwlock_remote.core.commands import (
    CLAIM_WINDOW,
    ENTRY_TTL,
    Acquire,
    ForceRelease,
    Granted,
    IllegalCommand,
    NotHeld,
    Release,
    Renew,
    Renewed,
    Withdraw,
    without_push,
)
from aiorwlock_remote.core.doorman import MAX_LOCAL_TURNS, Grant, MutexRecord
from aiorwlock_remote.core.pushed import (
    MAX_DRIFT,
    PushedGrant,
    StoreTime,
    proof_of,
    seal,
    sha256_proof_of,
    unseal,
)
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.transition import next_attempt
from tests.core.resource import (
    LEASE,
    MS,
    READ,
    SECOND,
    WRITE,
    OneLock,
    ask,
    down,
    granted,
    last,
)


def offered(*, more: int = 0, following: str = "", lease: int = LEASE) -> OneLock:
    """Return a resource whose writer has just left to ``b`` by a pushed grant."""
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.ask("b", WRITE, push=True, more=more, following=following, lease=lease)
    lock.release("a")
    return lock


def is_gone(reply: object) -> bool:
    """Return whether a reply says that the ticket has no grant."""
    return isinstance(reply, NotHeld)


def test_an_offer_to_an_entry_with_a_ticket_is_a_grant() -> None:
    """The resource is held for one claim window, under a new fence, and the entry
    stays.
    """
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.ask("b", WRITE, push=True)
    before = last(lock)
    lock.release("a")
    assert lock.woken == ["b"]
    assert lock.pushed is not None
    assert (lock.pushed.ticket, lock.pushed.mode) == ("b", WRITE)
    assert lock.pushed.fence > before
    assert lock.pushed.expires == lock.now + CLAIM_WINDOW
    assert lock.holders == ["b"]
    assert lock.queue == [("b", WRITE)]
    assert lock.state.pushed
    assert lock.seat is not None
    assert lock.seat.ticket == "b", "other programs stay out, too"
    assert lock.seat.expires == lock.pushed.expires


@pytest.mark.parametrize("kind", ["no push", "lock delay", "no end"])
def test_without_a_ticket_an_offer_is_a_reservation(kind: str) -> None:
    """A client that hears no message, a lock delay, a lease without end."""
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.ask(
        "b",
        WRITE,
        push=kind != "no push",
        lock_delay=SECOND if kind == "lock delay" else 0,
        lease=None if kind == "no end" else LEASE,
    )
    lock.release("a")
    assert (lock.woken, lock.holders, lock.pushed) == (["b"], [], None)


def test_the_confirmation_extends_the_grant() -> None:
    """The lease counts from then, the fence stays, and the entry is gone."""
    lock = offered()
    fence = last(lock)
    reply = lock.ask("b", WRITE, push=True, confirms=True)
    assert isinstance(reply, Granted)
    assert [g.fence for g in reply.grants] == [fence]
    assert reply.grants[0].since == lock.now
    assert reply.grants[0].expires == lock.now + LEASE
    assert (lock.queue, lock.state.pushed, reply.placed) == ([], False, False)
    assert lock.seat is not None
    assert lock.seat.expires == lock.now + LEASE
    again = lock.ask("b", WRITE, push=True, confirms=True)
    assert again == Granted(reply.grants, lock.now), "its reply may have been lost"


def test_a_poll_without_the_message_finds_the_pushed_grant() -> None:
    """The message was lost, and the client polls."""
    lock = offered()
    fence = last(lock)
    reply = lock.ask("b", WRITE, push=True)
    assert isinstance(reply, Granted)
    assert reply.grants[0].fence == fence
    assert reply.grants[0].expires == lock.now + LEASE


def test_the_confirmation_puts_the_next_task_at_the_tail() -> None:
    """With its own ticket, so that it can be pushed in its turn."""
    lock = offered()
    lock.ask("c", WRITE, push=True)
    lock.ask("b", WRITE, push=True, confirms=True, more=1, following="b2")
    assert lock.queue == [("c", WRITE), ("b", WRITE)]
    lock.release("b")
    assert lock.holders == ["c"]
    lock.ask("c", WRITE, push=True, confirms=True)
    lock.release("c")
    assert (lock.holders, lock.woken) == (["b2"], ["b"])


def test_a_grant_that_nobody_confirms_ends_with_its_window() -> None:
    """Its entry keeps its order, and blocks nobody; the ticket is not pushed again."""
    lock = offered()
    lock.ask("c", WRITE, push=True)
    lock.wait(CLAIM_WINDOW)
    lock.ask("c", WRITE, push=True)
    assert lock.holders == ["c"]
    assert lock.queue == [("b", WRITE)]
    assert lock.state.queue[0].missed_claim(lock.now)
    assert not lock.state.queue[0].ticket
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert lock.holders == ["c"]


def test_an_old_request_may_bring_back_a_ticket_that_was_pushed() -> None:
    """As a request that a proxy delivers twice: nobody remembers old tickets. By the
    first message nobody enters then: its grant ends before the second one begins.
    """
    lock, pushed = OneLock(), []
    for _ in range(2):
        lock.ask("b", WRITE, push=True, more=1, following="b2")
        lock.release("b")
        assert lock.pushed is not None
        pushed.append(lock.pushed)
        lock.wait(CLAIM_WINDOW)
    first, second = pushed
    assert [first.ticket, second.ticket] == ["b2", "b2"]
    assert first.fence < second.fence
    assert first.expires is not None
    assert first.expires < second.since


def test_a_late_confirmation_grants_nothing() -> None:
    """Even if the resource is free: another may have held it in between."""
    lock = offered()
    lock.wait(CLAIM_WINDOW)
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert lock.holders == []
    lock.leave("b", WRITE)
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert lock.holders == [], "nor if nobody waits at all"


def test_a_late_confirmation_at_an_unused_resource_grants_nothing() -> None:
    """No holder and no entry is left: the fast path must not take it for a new one."""
    lock = OneLock()
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert (lock.holders, lock.seat) == ([], None)
    lock = offered()
    lock.wait(ENTRY_TTL)
    lock.ask("c", WRITE)
    lock.release("c")
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert (lock.holders, lock.seat) == ([], None)


def test_the_end_of_an_unconfirmed_grant_admits_no_readers() -> None:
    """It is no write phase: the writer behind the dead entry is next."""
    lock = offered()
    lock.ask("r", READ)
    lock.ask("c", WRITE)
    lock.wait(CLAIM_WINDOW)
    assert granted(lock.ask("c", WRITE))


def test_the_end_of_a_confirmed_grant_admits_readers() -> None:
    """The release shows that the grant was used, if the confirmation was lost."""
    for confirm in (True, False):
        lock = offered()
        lock.ask("r", READ)
        lock.ask("c", WRITE)
        if confirm:
            lock.ask("b", WRITE, confirms=True)
        lock.release("b")
        assert lock.woken == ["r"]
        assert granted(lock.ask("r", READ))


def test_a_renewal_confirms() -> None:
    """The keeper's, if the client's own request is late; other tasks keep the entry."""
    for more, left in ((0, []), (1, [("b", WRITE)])):
        lock = OneLock()
        lock.ask("a", WRITE)
        lock.do(ask("b", WRITE, push=True, waiting=1 + more))
        lock.release("a")
        reply = lock.do(Renew((("b", LEASE),)))
        assert isinstance(reply, Renewed)
        outcome = reply.outcomes[0]
        assert isinstance(outcome, Grant)
        assert outcome.expires == lock.now + LEASE
        assert (lock.queue, lock.state.pushed) == (left, False)
        lock.release("b")
        assert lock.holders == [], "the ticket is not pushed again"


def test_a_move_confirms() -> None:
    """The holder turned into a reader before its confirmation arrived."""
    lock = offered()
    assert granted(lock.do(down("b", "b2")))
    assert (lock.holders, lock.queue, lock.state.pushed) == (["b2"], [], False)


@pytest.mark.parametrize("keep", [True, False])
def test_a_withdrawal_gives_back_what_was_pushed(keep: bool) -> None:
    """And takes the ticket out of the entry, which other tasks may keep."""
    lock = offered()
    lock.ask("c", WRITE, push=True)
    lock.do(Withdraw("b", WRITE, ("b",), keep=keep))
    assert lock.holders == ([] if keep else ["c"])
    assert lock.woken == (["b"] if keep else ["c"])
    assert not lock.state.entry("b", WRITE) or not lock.state.queue[0].ticket


def test_a_waiter_that_leaves_takes_its_ticket_out() -> None:
    """Before it was pushed: the entry's next offer is a wake-up."""
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.ask("b", WRITE, push=True)
    lock.do(Withdraw("b", WRITE, ("b",), keep=True))
    lock.release("a")
    assert (lock.woken, lock.holders) == (["b"], [])


def test_a_broken_pushed_grant_is_not_pushed_again() -> None:
    """Twice, the client could enter by the first message under the second grant."""
    lock = offered()
    lock.do(ForceRelease(holder_of("b"), last(lock)))
    assert (lock.holders, lock.state.pushed) == ([], False)
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    lock = offered()
    lock.seat = None  # somebody deleted the mutex record
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))


def test_a_confirmation_after_the_doorman_was_lost_leaves_no_orphan() -> None:
    """The ticket's own mutex record goes, as for a renewal."""
    lock = offered()
    lock.record = None
    assert is_gone(lock.ask("b", WRITE, push=True, confirms=True))
    assert lock.seat is None


def test_nothing_is_pushed_to_a_reader() -> None:
    """Nor can a reader confirm."""
    with pytest.raises(IllegalCommand):
        ask("r", READ, push=True)
    with pytest.raises(IllegalCommand):
        ask("r", READ, confirms=True)
    with pytest.raises(IllegalCommand):
        ask("r", READ, more=1, following="r2")


def test_a_short_lease_bounds_the_pushed_grant() -> None:
    """A lease shorter than the claim window."""
    lock = offered(lease=10 * MS)
    assert lock.pushed is not None
    assert lock.pushed.expires == lock.now + 10 * MS
    lock.wait(10 * MS)
    lock.ask("c", WRITE)
    assert lock.holders == ["c"]


def test_after_a_hundred_pushed_grants_the_seat_is_vacated_once() -> None:
    """A foreign program that polls with INSERT would starve otherwise."""
    lock = OneLock()
    lock.ask("a", WRITE, push=True)
    client_ids = "ab"
    for turn in range(MAX_LOCAL_TURNS):
        mine, other = client_ids[turn % 2], client_ids[(turn + 1) % 2]
        lock.ask(other, WRITE, f"{other}{turn}", push=True)
        lock.release(mine if turn == 0 else f"{mine}{turn - 1}")
        assert lock.pushed is not None, turn
        lock.ask(other, WRITE, f"{other}{turn}", push=True, confirms=True)
    lock.ask("c", WRITE, push=True)
    lock.release(f"a{MAX_LOCAL_TURNS - 1}")
    assert (lock.woken, lock.holders, lock.seat) == (["c"], [], None)
    assert granted(lock.ask("c", WRITE, push=True))
    lock.ask("d", WRITE, push=True)
    lock.release("c")
    assert lock.holders == ["d"]


def test_a_foreign_mutex_record_keeps_a_pushed_grant_out() -> None:
    """Nothing is offered while another program holds the resource."""
    lock = OneLock()
    lock.ask("a", WRITE)
    lock.ask("b", WRITE, push=True)
    lock.seat = MutexRecord("another,1", None)
    lock.release("a")
    assert (lock.holders, lock.pushed) == ([], None)


def test_a_window_that_was_missed_doubles_the_next() -> None:
    """As for a reservation."""
    lock = offered()
    lock.wait(CLAIM_WINDOW)
    lock.ask("c", WRITE)
    lock.ask("b", WRITE, "b2", push=True)
    lock.release("c")
    assert lock.pushed is not None
    assert lock.pushed.ticket == "b2"
    assert lock.pushed.expires == lock.now + 2 * CLAIM_WINDOW <= lock.now + ENTRY_TTL


def test_a_message_proves_that_its_sender_knows_the_ticket() -> None:
    """Each number of the message is part of the proof."""
    proof = proof_of("ticket", 1, 2, 3)
    assert PushedGrant(3, 1, 2, proof).proves("ticket")
    assert not PushedGrant(3, 1, 2, proof).proves("other")
    for fence, since, expires in ((4, 1, 2), (3, 0, 2), (3, 1, 3)):
        assert not PushedGrant(fence, since, expires, proof).proves("ticket")


def test_a_grant_lasts_until_the_stores_clock_may_have_reached_its_end() -> None:
    """By a bound that counts from when an earlier request was sent."""
    bound = StoreTime(now=50 * SECOND, sent_at=7.0)
    since, expires = 52 * SECOND, 52 * SECOND + CLAIM_WINDOW
    ends, _ = bound.bounds(PushedGrant(1, since, expires, ""), 9.0)
    assert ends == pytest.approx(7.0 + 2.1 / (1 + MAX_DRIFT))
    at_its_end = PushedGrant(1, expires, expires + 1, "")
    _, late = bound.bounds(at_its_end, ends)
    assert late == pytest.approx(0, abs=2e-6), "the clock shows at most that time then"


def test_a_message_of_a_later_time_than_the_clock_can_show_is_of_another_clock() -> (
    None
):
    """The store's clock was set forward, or it is another server's."""
    bound = StoreTime(now=50 * SECOND, sent_at=7.0)
    late = PushedGrant(1, 50 * SECOND + 200 * MS, 50 * SECOND + 300 * MS, "")
    assert bound.bounds(late, 7.1)[1] < 0
    assert bound.bounds(late, 7.2)[1] == pytest.approx(0.2 * MAX_DRIFT)


def test_a_server_may_prove_by_sha256() -> None:
    proof = sha256_proof_of("ticket", 1, 2, 3)
    assert PushedGrant(3, 1, 2, proof).proves("ticket")
    assert not PushedGrant(3, 1, 2, proof).proves("other")
    assert not PushedGrant(4, 1, 2, proof).proves("ticket")
    assert not PushedGrant(3, 1, 2, proof_of("ticket", 1, 2, 3)[:39]).proves("ticket")


@pytest.mark.parametrize("proof", ["", "\xe9" * 40, "\ud800", "0" * 64])
def test_any_text_may_come_as_a_proof(proof: str) -> None:
    """Anybody may send a message."""
    assert not PushedGrant(3, 1, 2, proof).proves("ticket")


def test_a_sealed_record_is_read_by_who_knows_the_ticket() -> None:
    """And by nobody else, unchanged; it tells no ticket that is in it."""
    text = 'the record, with "other-ticket" and \xe9\ud800'
    sealed = seal(text, "ticket", "v1")
    assert unseal(sealed, "ticket", "v1") == text
    assert "other-ticket" not in sealed
    assert b"other-ticket" not in b64decode(sealed)
    assert unseal(sealed, "other", "v1") is None
    assert unseal(sealed, "ticket", "v2") is None
    assert seal(text, "ticket", "v2")[50:] != sealed[50:]
    raw = bytearray(b64decode(sealed))
    for place in (0, len(raw) - 1):
        raw[place] ^= 1
        assert unseal(b64encode(raw).decode(), "ticket", "v1") is None
        raw[place] ^= 1
    for other in ("", "?", sealed[:-4], "\xe9"):
        assert unseal(other, "ticket", "v1") is None


def test_a_poller_finds_its_pushed_grant() -> None:
    """The message was lost: whoever reads the record asks at once, and only then."""
    lock = offered()
    lock.ask("c", WRITE)
    assert lock.record is not None
    found = next_attempt(lock.record, lock.seat, "b", lock.now)
    assert found is not None
    assert found[1] == 0
    other = next_attempt(lock.record, lock.seat, "c", lock.now)
    assert other is not None
    assert other[1] > 0


def test_a_client_that_hears_nothing_is_pushed_nothing() -> None:
    """It takes its tickets out of its requests, and confirms all the same."""
    first = ask("b", WRITE, push=True, more=1, following="b2")
    silent = without_push(first)
    assert isinstance(silent, Acquire)
    assert (silent.push, silent.following, silent.more) == (False, None, 1)
    carried = without_push(Release("a", WRITE, (first,)))
    assert carried == Release("a", WRITE, (silent,))
    confirms = without_push(ask("b", WRITE, push=True, confirms=True))
    assert isinstance(confirms, Acquire)
    assert confirms.confirms
    unchanged = Release("a")
    assert without_push(unchanged) is unchanged
