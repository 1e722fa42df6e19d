"""Acquire, withdraw, renew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiorwlock_remote.core.commands import (
    OTHER_MODE,
    Acquire,
    Claim,
    Granted,
    IllegalCommand,
    Refused,
    Renew,
    Renewed,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from tests.core.resource import LEASE, READ, SECOND, WRITE, OneLock


def test_a_grant() -> None:
    """The grant names holder, mode, fence, start and end."""
    lock = OneLock()
    reply = lock.ask("w", WRITE)
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.ticket, grant.mode, grant.since) == ("w", WRITE, lock.now)
    assert grant.expires == lock.now + LEASE
    assert (reply.now, reply.placed) == (lock.now, False)
    assert lock.record is not None
    assert grant.fence == lock.record.last


def test_readers_of_a_phase_share_its_fence() -> None:
    """Readers that join have the phase's fence; the next phase has a greater one."""
    lock = OneLock()
    fences = []
    for ticket in ("r1", "r2"):
        reply = lock.ask(ticket, READ)
        assert isinstance(reply, Granted)
        fences.append(reply.grants[0].fence)
    lock.release("r1")
    lock.release("r2")
    reply = lock.ask("r3", READ)
    assert isinstance(reply, Granted)
    assert fences[0] == fences[1] < reply.grants[0].fence


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_asked_again_the_same_ticket_has_the_same_grant(mode: Mode) -> None:
    """A repeated acquire changes nothing, so nothing needs to be stored."""
    lock = OneLock()
    first = lock.ask("t", mode)
    record = lock.record
    second = lock.ask("t", mode)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.grants == second.grants
    assert lock.record is record


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_a_live_ticket_in_another_mode_is_refused(mode: Mode) -> None:
    """A holder keeps its mode; the published calls return False."""
    lock = OneLock()
    lock.ask("t", mode)
    record = lock.record
    other = READ if mode is WRITE else WRITE
    refused = lock.attempt("t", other)
    assert isinstance(refused, Refused)
    assert refused.why == OTHER_MODE
    assert lock.record is record


def test_all_readers_of_a_process_enter_at_once() -> None:
    """One request grants all its tickets; repeated with more, the rest join."""
    lock = OneLock()
    reply = lock.ask("g", READ, "a", "b")
    assert isinstance(reply, Granted)
    assert [g.ticket for g in reply.grants] == ["a", "b"]
    more = lock.ask("g", READ, "a", "b", "c")
    assert isinstance(more, Granted)
    assert [g.ticket for g in more.grants] == ["a", "b", "c"]


def test_a_repeated_batch_tells_who_is_in_already() -> None:
    """A repeated batch reports its granted readers although the others wait by now."""
    lock = OneLock()
    lock.ask("g", READ, "a")
    lock.ask("w", WRITE)
    reply = lock.ask("g", READ, "a", "b")
    assert isinstance(reply, Granted)
    assert [g.ticket for g in reply.grants] == ["a"]
    assert reply.placed
    assert lock.queue == [("w", WRITE), ("g", READ)]


def test_a_place_is_one_however_often_it_is_asked_for() -> None:
    """A client has one entry for each mode, which keeps its number."""
    lock = OneLock()
    lock.ask("w", WRITE)
    for _ in range(3):
        lock.ask("g", WRITE, "a")
        lock.ask("g", READ, "b")
    assert lock.queue == [("g", WRITE), ("g", READ)]


def test_each_request_keeps_its_queue_entry_alive() -> None:
    """An entry expires unless its client asks."""
    lock = OneLock()
    lock.ask("w", WRITE, lease=60 * SECOND)
    lock.ask("alive", WRITE)
    lock.ask("dead", WRITE)
    for _ in range(4):
        lock.wait(1_200_000)
        lock.ask("alive", WRITE)
    assert lock.queue == [("alive", WRITE)]


def test_more_puts_the_process_at_the_tail() -> None:
    """A client that is served queues up behind the other clients."""
    lock = OneLock()
    lock.ask("w", WRITE)
    lock.ask("g", WRITE, "a", more=1)
    lock.ask("h", WRITE)
    lock.release("w")
    reply = lock.ask("g", WRITE, "a", more=1)
    assert isinstance(reply, Granted)
    assert reply.placed
    assert lock.queue == [("h", WRITE), ("g", WRITE)]


def test_withdraw_takes_back_whatever_became_of_it() -> None:
    """A withdrawal undoes granted, queued and unknown tickets; it may be repeated."""
    lock = OneLock()
    assert lock.leave("g", WRITE, "t") == Withdrawn()
    lock.ask("g", WRITE, "t")
    lock.ask("h", WRITE)
    assert lock.leave("g", WRITE, "t") == Withdrawn(("t",))
    assert lock.woken == ["h"]
    assert lock.leave("g", WRITE, "t") == Withdrawn()
    lock.ask("h", WRITE)
    lock.ask("i", READ)
    assert lock.leave("i", READ, "i") == Withdrawn()
    assert (lock.holders, lock.queue) == (["h"], [])


def test_renewals() -> None:
    """A renewal extends from now; the reply says, in order, which grants are gone."""
    lock = OneLock()
    lock.ask("r1", READ)
    lock.ask("r2", READ)
    reply = lock.do(Renew((("r2", None), ("gone", LEASE), ("r1", 2 * LEASE))))
    assert isinstance(reply, Renewed)
    second, gone, first = reply.outcomes
    assert (getattr(second, "expires", 0), getattr(gone, "reason", "")) == (
        None,
        "expired",
    )
    assert getattr(first, "expires", 0) == lock.now + 2 * LEASE


def test_only_an_exact_renewal_shortens() -> None:
    lock = OneLock()
    lock.ask("w", WRITE, lease=9 * LEASE)

    def end(lease: int | None, *, exact: bool) -> int | None:
        reply = lock.do(Renew((("w", lease),), exact=exact))
        assert isinstance(reply, Renewed)
        (grant,) = reply.outcomes
        assert isinstance(grant, Grant)
        return grant.expires

    before = end(LEASE, exact=False)
    assert before is not None
    assert before > lock.now + 8 * LEASE
    assert end(LEASE, exact=True) == lock.now + LEASE
    assert end(None, exact=True) is None
    assert end(LEASE, exact=False) is None
    assert end(LEASE, exact=True) == lock.now + LEASE


CLAIM = Claim("t", LEASE)
NONSENSE: dict[str, Callable[[], object]] = {
    "no ticket": lambda: Claim("", LEASE),
    "no lease": lambda: Claim("t", 0),
    "nobody asks": lambda: Acquire((), READ),
    "two writers": lambda: Acquire((CLAIM, Claim("u", LEASE)), WRITE),
    "one asks twice": lambda: Acquire((CLAIM, CLAIM), READ),
    "an entry of nobody": lambda: Acquire((CLAIM,), READ, may_queue=True),
    "more of nobody": lambda: Acquire((CLAIM,), WRITE, more=1),
    "a renewal for no time": lambda: Renew((("t", 0),)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_cannot_be_said(what: str) -> None:
    """A command that makes no sense cannot be made."""
    with pytest.raises(IllegalCommand):
        NONSENSE[what]()
