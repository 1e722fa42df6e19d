"""Adoption: a grant goes from one owner to another."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import Granted, NotHeld, Release, Released
from aiorwlock_remote.core.doorman import MutexRecord
from aiorwlock_remote.core.ticket import Mode
from tests.core.resource import LEASE, READ, WRITE, Door, granted, last, over, up


def test_an_adopted_writer_starts_a_phase() -> None:
    """The mutex record changes, too; lease, requester and time are the adopter's."""
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
    """The other readers hold what they held, and no waiter enters."""
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
    """The former owner holds no more; repeated adoptions change nothing."""
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
    """Waiters are called when the adopter leaves, and not before."""
    door = Door()
    door.ask("w", WRITE)
    door.ask("r", READ)
    door.do(over("w", "a"))
    assert not door.woken
    door.release("a")
    assert door.woken == ["r"]


def test_an_adopted_upgraded_writer_still_passed_the_queue() -> None:
    """The writer that it passed is next, as if there had been no adoption."""
    door = Door()
    door.ask("r1", READ)
    door.ask("w", WRITE)
    door.ask("r2", READ)
    assert granted(door.do(up("r1", "u")))
    assert granted(door.do(over("u", "a")))
    door.release("a")
    assert door.woken == ["w"]


def test_who_adopts_an_upgrader_does_not_upgrade() -> None:
    """The former owner waited for the upgrade; readers may join again."""
    door = Door()
    door.ask("r1", READ)
    door.ask("r2", READ)
    door.do(up("r1", "u"))
    door.ask("r3", READ)
    assert granted(door.do(over("r1", "a")))
    assert door.woken == ["r3"]
    assert door.do(up("r1", "u")) == NotHeld("expired")


def test_what_was_voided_is_not_adopted() -> None:
    """A voided grant is not adopted, with or without a foreign record."""
    door = Door()
    door.ask("w", WRITE)
    door.seat = None
    assert door.do(over("w", "a")) == NotHeld("forced")
    assert door.holders == []
    door.seat = MutexRecord("thief,5")
    assert door.do(over("w", "a")) == NotHeld("forced")
    assert door.seat == MutexRecord("thief,5")
