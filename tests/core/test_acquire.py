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
from tests.core.resource import LEASE, READ, SECOND, WRITE, Door


def test_a_grant() -> None:
    """The grant names holder, mode, fence, start and end."""
    door = Door()
    reply = door.ask("w", WRITE)
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.ticket, grant.mode, grant.since) == ("w", WRITE, door.now)
    assert grant.expires == door.now + LEASE
    assert (reply.now, reply.placed) == (door.now, False)
    assert door.record is not None
    assert grant.fence == door.record.last


def test_readers_of_a_phase_share_its_fence() -> None:
    """Readers that join have the phase's fence; the next phase has a greater one."""
    door = Door()
    fences = []
    for ticket in ("r1", "r2"):
        reply = door.ask(ticket, READ)
        assert isinstance(reply, Granted)
        fences.append(reply.grants[0].fence)
    door.release("r1")
    door.release("r2")
    reply = door.ask("r3", READ)
    assert isinstance(reply, Granted)
    assert fences[0] == fences[1] < reply.grants[0].fence


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_asked_again_the_same_ticket_has_the_same_grant(mode: Mode) -> None:
    """A repeated acquire changes nothing, so nothing needs to be stored."""
    door = Door()
    first = door.ask("t", mode)
    record = door.record
    second = door.ask("t", mode)
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.grants == second.grants
    assert door.record is record


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_a_live_ticket_in_another_mode_is_refused(mode: Mode) -> None:
    """A holder keeps its mode; the published calls return False."""
    door = Door()
    door.ask("t", mode)
    record = door.record
    other = READ if mode is WRITE else WRITE
    refused = door.attempt("t", other)
    assert isinstance(refused, Refused)
    assert refused.why == OTHER_MODE
    assert door.record is record


def test_all_readers_of_a_process_enter_at_once() -> None:
    """One request grants all its tickets; repeated with more, the rest join."""
    door = Door()
    reply = door.ask("g", READ, "a", "b")
    assert isinstance(reply, Granted)
    assert [g.ticket for g in reply.grants] == ["a", "b"]
    more = door.ask("g", READ, "a", "b", "c")
    assert isinstance(more, Granted)
    assert [g.ticket for g in more.grants] == ["a", "b", "c"]


def test_a_repeated_batch_tells_who_is_in_already() -> None:
    """A repeated batch reports its granted readers although the others wait by now."""
    door = Door()
    door.ask("g", READ, "a")
    door.ask("w", WRITE)
    reply = door.ask("g", READ, "a", "b")
    assert isinstance(reply, Granted)
    assert [g.ticket for g in reply.grants] == ["a"]
    assert reply.placed
    assert door.queue == [("w", WRITE), ("g", READ)]


def test_a_place_is_one_however_often_it_is_asked_for() -> None:
    """A client has one entry for each mode, which keeps its number."""
    door = Door()
    door.ask("w", WRITE)
    for _ in range(3):
        door.ask("g", WRITE, "a")
        door.ask("g", READ, "b")
    assert door.queue == [("g", WRITE), ("g", READ)]


def test_who_asks_keeps_its_place_alive() -> None:
    """An entry expires unless its client asks."""
    door = Door()
    door.ask("w", WRITE, lease=60 * SECOND)
    door.ask("alive", WRITE)
    door.ask("dead", WRITE)
    for _ in range(4):
        door.wait(1_200_000)
        door.ask("alive", WRITE)
    assert door.queue == [("alive", WRITE)]


def test_more_puts_the_process_at_the_tail() -> None:
    """A client that is served queues up behind the other clients."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("g", WRITE, "a", more=1)
    door.ask("h", WRITE)
    door.release("w")
    reply = door.ask("g", WRITE, "a", more=1)
    assert isinstance(reply, Granted)
    assert reply.placed
    assert door.queue == [("h", WRITE), ("g", WRITE)]


def test_withdraw_takes_back_whatever_became_of_it() -> None:
    """A withdrawal undoes granted, queued and unknown tickets; it may be repeated."""
    door = Door()
    assert door.leave("g", WRITE, "t") == Withdrawn()
    door.ask("g", WRITE, "t")
    door.ask("h", WRITE)
    assert door.leave("g", WRITE, "t") == Withdrawn(("t",))
    assert door.woken == ["h"]
    assert door.leave("g", WRITE, "t") == Withdrawn()
    door.ask("h", WRITE)
    door.ask("i", READ)
    assert door.leave("i", READ, "i") == Withdrawn()
    assert (door.holders, door.queue) == (["h"], [])


def test_renewals() -> None:
    """A renewal extends from now; the reply says, in order, which grants are gone."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    reply = door.do(Renew((("r2", None), ("gone", LEASE), ("r1", 2 * LEASE))))
    assert isinstance(reply, Renewed)
    second, gone, first = reply.outcomes
    assert (getattr(second, "expires", 0), getattr(gone, "reason", "")) == (
        None,
        "expired",
    )
    assert getattr(first, "expires", 0) == door.now + 2 * LEASE


def test_only_an_exact_renewal_shortens() -> None:
    door = Door()
    door.ask("w", WRITE, lease=9 * LEASE)

    def end(lease: int | None, *, exact: bool) -> int | None:
        reply = door.do(Renew((("w", lease),), exact=exact))
        assert isinstance(reply, Renewed)
        (grant,) = reply.outcomes
        assert isinstance(grant, Grant)
        return grant.expires

    before = end(LEASE, exact=False)
    assert before is not None
    assert before > door.now + 8 * LEASE
    assert end(LEASE, exact=True) == door.now + LEASE
    assert end(None, exact=True) is None
    assert end(LEASE, exact=False) is None
    assert end(LEASE, exact=True) == door.now + LEASE


CLAIM = Claim("t", LEASE)
NONSENSE: dict[str, Callable[[], object]] = {
    "no ticket": lambda: Claim("", LEASE),
    "no lease": lambda: Claim("t", 0),
    "nobody asks": lambda: Acquire((), READ),
    "two writers": lambda: Acquire((CLAIM, Claim("u", LEASE)), WRITE),
    "one asks twice": lambda: Acquire((CLAIM, CLAIM), READ),
    "a place of nobody": lambda: Acquire((CLAIM,), READ, may_queue=True),
    "more of nobody": lambda: Acquire((CLAIM,), WRITE, more=1),
    "a renewal for no time": lambda: Renew((("t", 0),)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_cannot_be_said(what: str) -> None:
    """A command that makes no sense cannot be made."""
    with pytest.raises(IllegalCommand):
        NONSENSE[what]()
