"""Downgrade, upgrade and adoption."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    BARRED,
    HELD,
    Adopt,
    Claim,
    Command,
    Conflict,
    Downgrade,
    Force,
    Granted,
    IllegalCommand,
    NotHeld,
    Refused,
    Release,
    Released,
    Upgrade,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.record import Record, Seat, Who
from aiorwlock_remote.core.ticket import Mode, holder_of
from tests.core.door import LEASE, READ, SECOND, WRITE, Door, granted


def down(ticket: str, new: str) -> Downgrade:
    """Writer → reader."""
    return Downgrade(ticket, Claim(new, LEASE))


def up(ticket: str, new: str, *, may_wait: bool = True) -> Upgrade:
    """Reader → writer, of a process named after the ticket."""
    return Upgrade(ticket, Claim(new, LEASE), gate=ticket, may_wait=may_wait)


def over(ticket: str, new: str) -> Adopt:
    """From one owner to another."""
    return Adopt(ticket, Claim(new, 2 * LEASE, Who("h", 7)))


def last(door: Door) -> int:
    """The last fence."""
    return (door.record or Record()).last


def test_a_downgrade_starts_a_phase_and_lets_readers_join() -> None:
    """Those that waited; the writer behind them stays out."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.ask("w2", WRITE)
    before = last(door)
    reply = door.do(down("w", "d"))
    assert isinstance(reply, Granted)
    assert [(g.ticket, g.mode) for g in reply.grants] == [("d", READ)]
    assert last(door) > before
    assert door.woken == ["r"]
    assert granted(door.ask("r", READ))
    assert not granted(door.ask("r2", READ))
    assert door.holders == ["d", "r"]


def test_moves_are_idempotent() -> None:
    """The repeated command finds what the first one made."""
    door = Door()
    door.ask("w", WRITE)
    first = door.do(down("w", "d"))
    second = door.do(down("w", "d"))
    assert isinstance(first, Granted)
    assert isinstance(second, Granted)
    assert first.grants == second.grants
    third = door.do(up("d", "u"))
    fourth = door.do(up("d", "u"))
    assert isinstance(third, Granted)
    assert isinstance(fourth, Granted)
    assert third.grants == fourth.grants
    assert third.grants[0].fence > first.grants[0].fence


@pytest.mark.parametrize(
    "command", [down("gone", "x"), up("gone", "x"), over("gone", "x")]
)
def test_only_a_holder_moves(command: Command) -> None:
    """Told why it holds no more."""
    assert Door().do(command) == NotHeld("expired")


def test_an_illegal_move_changes_nothing() -> None:
    """A reader cannot be downgraded, a writer not upgraded."""
    door = Door()
    door.ask("w", WRITE)
    before = door.record, door.seat
    with pytest.raises(IllegalCommand):
        door.do(up("w", "x"))
    assert (door.record, door.seat) == before
    door.release("w")
    door.ask("r", READ)
    before = door.record, door.seat
    with pytest.raises(IllegalCommand):
        door.do(down("r", "x"))
    assert (door.record, door.seat) == before


def test_one_reader_at_most_waits_to_be_upgraded() -> None:
    """Two would wait for each other."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    assert isinstance(door.do(up("r1", "u")), Waiting)
    assert door.do(up("r2", "v")) == Conflict()
    assert isinstance(door.do(up("r1", "u")), Waiting)
    door.release("r2")
    assert door.woken == ["r1"]
    assert granted(door.do(up("r1", "u")))
    assert door.holders == ["u"]


def test_who_does_not_wait_is_refused() -> None:
    """And holds on as a reader, keeping nobody out."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    refused = door.do(up("r1", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == HELD
    assert granted(door.ask("r3", READ))


def test_an_upgrader_closes_joining() -> None:
    """As a waiting writer does."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    assert not granted(door.ask("r3", READ))
    assert not granted(door.attempt("r4", READ))


@pytest.mark.parametrize("how", ["release", "force", "withdraw", "give up"])
def test_joining_reopens_when_the_upgrader_goes(how: str) -> None:
    """At once, and who waits is called; nobody polls for it."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    commands: dict[str, Command] = {
        "force": Force(holder_of("r1"), last(door)),
        "withdraw": Withdraw("r1", READ, ("r1", "u"), keep=True),
        "give up": Withdraw("r1", READ, keep=True, upgrader="r1"),
    }
    if how == "release":
        door.release("r1")
    else:
        door.do(commands[how])
    assert door.woken == ["r3"]
    assert granted(door.ask("r3", READ))


def test_the_last_reader_goes_while_it_waits_to_be_upgraded() -> None:
    """The resource is free, and the reader it kept out is called."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    door.release("r2")
    assert door.woken == ["r1"]
    door.release("r1")
    assert door.woken == ["r3"]


def test_an_upgrader_that_died_is_forgotten() -> None:
    """Its slot lives as long as a place."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.wait(5 * SECOND)
    assert granted(door.ask("r3", READ))


def test_no_upgrade_during_a_lock_delay() -> None:
    """The reader whose lease ran out may still be reading."""
    door = Door()
    door.ask("stays", READ)
    door.ask("lost", READ, lease=SECOND, lock_delay=3 * SECOND)
    door.wait(SECOND)
    refused = door.do(up("stays", "u", may_wait=False))
    assert isinstance(refused, Refused)
    assert refused.why == BARRED
    assert isinstance(door.do(up("stays", "u")), Waiting)
    door.wait(3 * SECOND)
    assert granted(door.do(up("stays", "u")))


def test_admitted_readers_go_before_an_upgrade() -> None:
    """Or who is in already would lock them out again and again."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.do(down("w", "d"))
    assert isinstance(door.do(up("d", "u")), Waiting)
    assert granted(door.ask("r", READ))
    door.release("r")
    assert door.woken == ["d"]
    assert granted(door.do(up("d", "u")))


def test_a_writer_that_was_passed_by_an_upgrade_is_next() -> None:
    """Or readers upgrading in turn would starve it."""
    door = Door()
    door.ask("r1", READ)
    door.ask("w", WRITE)
    door.ask("r2", READ)
    assert granted(door.do(up("r1", "u")))
    door.release("u")
    assert door.woken == ["w"]
    assert not granted(door.ask("r2", READ))
    assert granted(door.ask("w", WRITE))
    door.release("w")
    assert door.woken == ["r2"]


def test_an_adopted_writer_starts_a_phase() -> None:
    """The seat goes along; the lease, the owner and the time are the adopter's."""
    door = Door()
    door.ask("w", WRITE)
    before = last(door)
    reply = door.do(over("w", "a"))
    assert isinstance(reply, Granted)
    (grant,) = reply.grants
    assert (grant.ticket, grant.mode, grant.who.pid) == ("a", WRITE, 7)
    assert (grant.since, grant.expires) == (door.now, door.now + 2 * LEASE)
    assert grant.fence == last(door) > before
    assert door.holders == ["a"]
    assert door.seat is not None
    assert (door.seat.ticket, door.seat.expires) == ("a", grant.expires)


def test_an_adopted_reader_stays_in_its_phase() -> None:
    """The others hold what they held, and nobody else enters."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.ask("w", WRITE)
    before = last(door)
    reply = door.do(over("r1", "a"))
    assert isinstance(reply, Granted)
    assert [(g.ticket, g.fence) for g in reply.grants] == [("a", before)]
    assert last(door) == before
    assert sorted(door.holders) == ["a", "r2"]
    assert not door.woken


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_of_two_adopters_one_gets_it(mode: Mode) -> None:
    """And whoever gave it away has it no more; to ask again changes nothing."""
    door = Door()
    door.ask("t", mode)
    first = door.do(over("t", "a"))
    assert granted(first)
    assert door.do(over("t", "b")) == NotHeld("expired")
    again = door.do(over("t", "a"))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.grants == first.grants
    assert door.do(Release("t")) == Released(held=False)
    assert door.do(over("a", "b")) != NotHeld("expired"), "and so on"
    assert door.holders == ["b"]


def test_an_adoption_ends_no_phase() -> None:
    """Who waits is called when the adopter leaves, and not before."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.do(over("w", "a"))
    assert not door.woken
    door.release("a")
    assert door.woken == ["r"]


def test_an_adopted_upgraded_writer_still_passed_the_queue() -> None:
    """The writer that it passed is next, as if nobody had adopted it."""
    door = Door()
    door.ask("r1", READ)
    door.ask("w", WRITE)
    door.ask("r2", READ)
    assert granted(door.do(up("r1", "u")))
    assert granted(door.do(over("u", "a")))
    door.release("a")
    assert door.woken == ["w"]


def test_who_adopts_an_upgrader_does_not_upgrade() -> None:
    """It was another who waited; joining is open again."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    assert granted(door.do(over("r1", "a")))
    assert door.woken == ["r3"]
    assert door.do(up("r1", "u")) == NotHeld("expired")


def test_what_was_voided_is_not_adopted() -> None:
    """Neither from an empty seat nor from a foreign one."""
    door = Door()
    door.ask("w", WRITE)
    door.seat = None
    assert door.do(over("w", "a")) == NotHeld("forced")
    assert door.holders == []
    door.seat = Seat("w,5")
    assert door.do(over("w", "a")) == NotHeld("forced")
    assert door.seat == Seat("w,5")
