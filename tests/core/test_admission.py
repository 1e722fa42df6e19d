"""Whose turn it is."""

from __future__ import annotations

import pytest

from aiorwlock_remote.core.commands import (
    AHEAD,
    CLAIM_WINDOW,
    ENTRY_TTL,
    FULL,
    HELD,
    Refused,
    Released,
    Waiting,
)
from aiorwlock_remote.core.doorman import MAX_LOCAL_TURNS, MutexRecord
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode
from aiorwlock_remote.core.transition import next_attempt, peek
from tests.core.resource import LEASE, MS, READ, SECOND, WRITE, Door, ask, granted, told


def test_phases_are_fair() -> None:
    """A writer, then all readers waiting at that moment, then the oldest writer."""
    door = Door()
    assert granted(door.ask("w1", WRITE))
    for gate, mode in (("r1", READ), ("w2", WRITE), ("r2", READ), ("w3", WRITE)):
        assert not granted(door.ask(gate, mode))
    door.release("w1")
    assert door.woken == ["r1", "r2"]
    assert not granted(door.ask("w2", WRITE))
    assert granted(door.ask("r2", READ))
    assert not granted(door.ask("r3", READ)), "came later than the writers"
    assert granted(door.ask("r1", READ))
    door.release("r1")
    assert door.woken == []
    door.release("r2")
    assert door.woken == ["w2"]
    assert not granted(door.ask("w3", WRITE))
    assert granted(door.ask("w2", WRITE))
    door.release("w2")
    assert door.woken == ["r3"]


def test_readers_join_until_a_writer_waits() -> None:
    """Readers join again when the writer has gone; those that waited are called."""
    door = Door()
    assert granted(door.ask("r1", READ))
    assert granted(door.ask("r2", READ))
    assert not granted(door.ask("w", WRITE))
    assert not granted(door.ask("r3", READ))
    door.leave("w", WRITE)
    assert door.woken == ["r3"]
    assert granted(door.ask("r3", READ))


def test_the_window_of_the_admitted_closes() -> None:
    """A reader that does not come within the window waits behind the writer."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("r1", READ)
    door.ask("w2", WRITE)
    door.release("w1")
    assert told(door.ask("w2", WRITE)) == CLAIM_WINDOW - MS
    door.wait(CLAIM_WINDOW)
    assert not granted(door.ask("r1", READ))
    assert granted(door.ask("w2", WRITE))


def test_a_dead_reader_costs_one_window() -> None:
    """It does not cost another window at the end of every write phase."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("dead", READ)
    door.ask("w2", WRITE)
    door.ask("w3", WRITE)
    door.release("w1")
    door.wait(CLAIM_WINDOW)
    assert granted(door.ask("w2", WRITE))
    door.release("w2")
    assert door.woken == ["w3"]
    assert granted(door.ask("w3", WRITE))


def test_a_window_that_a_foreign_program_sat_through_opens_anew() -> None:
    """Admitted readers that came in vain are called again after that program."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("r", READ)
    door.ask("w2", WRITE)
    door.release("w1")
    assert door.woken == ["r"]
    door.seat = MutexRecord("thief,1", None)
    assert not granted(door.ask("r", READ))
    door.seat = None
    assert not granted(door.ask("w2", WRITE))
    assert door.woken == ["r"]
    assert granted(door.ask("r", READ))


def test_a_late_reader_is_admitted_again_when_it_asks() -> None:
    """It keeps its entry, and loses only the window it missed."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("r", READ)
    door.ask("w2", WRITE)
    door.release("w1")
    door.wait(CLAIM_WINDOW)
    door.ask("w2", WRITE)
    assert not granted(door.ask("r", READ))
    door.ask("w3", WRITE)
    door.release("w2")
    assert door.woken == ["r"]
    assert granted(door.ask("r", READ))


def test_a_late_head_keeps_its_order() -> None:
    """It lost one claim; when it asks, it is the head again."""
    door = Door()
    door.ask("w1", WRITE)
    for gate in ("slow", "w3", "w4"):
        door.ask(gate, WRITE)
    door.release("w1")
    assert door.woken == ["slow"]
    assert told(door.ask("w3", WRITE)) == CLAIM_WINDOW - MS
    door.wait(CLAIM_WINDOW)
    assert granted(door.ask("w3", WRITE))
    assert not granted(door.ask("slow", WRITE))
    door.release("w3")
    assert door.woken == ["slow"]
    assert not granted(door.ask("w4", WRITE))
    assert granted(door.ask("slow", WRITE))


def test_a_dead_head_is_forgotten_in_time() -> None:
    """Its entry lives for its time to live, and no longer."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("dead", WRITE)
    door.wait(ENTRY_TTL)
    door.ask("r", READ)
    assert door.queue == [("r", READ)]


def test_the_offer_of_a_free_resource_is_told_with_the_answer() -> None:
    """A client to which the very step offers the resource is to come at once."""
    door = Door()
    door.ask("w1", WRITE)
    carried = ask("r", READ)
    for _ in range(MAX_LOCAL_TURNS):
        door.release(door.holders[0], ask("w1", WRITE, f"t{door.now}"))
    reply = door.release(door.holders[0], carried)
    assert isinstance(reply, Released)
    assert told(reply.then[0]) == 0
    assert door.woken == ["r"]


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_who_takes_no_place_waits_for_nobody(mode: Mode) -> None:
    """An acquire without an entry is refused while others are ahead or hold."""
    door = Door()
    door.ask("w1", WRITE)
    held = door.attempt("t", mode)
    assert isinstance(held, Refused)
    assert (held.why, held.retry_after) == (HELD, LEASE - MS)
    door.ask("w2", WRITE)
    door.release("w1")
    ahead = door.attempt("t", mode)
    assert isinstance(ahead, Refused)
    assert ahead.why == AHEAD
    assert door.queue == [("w2", WRITE)]


def test_who_takes_no_place_waits_for_admitted_readers_too() -> None:
    """Admitted readers are ahead of it after a write phase."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("r", READ)
    door.release("w1")
    refused = door.attempt("t", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == AHEAD


def test_readers_that_wait_are_before_a_writer_that_comes() -> None:
    """This holds also when the phase that ended was a foreign program's."""
    door = Door()
    door.seat = MutexRecord("thief,1")
    assert not granted(door.ask("r", READ))
    door.seat = None
    assert not granted(door.ask("w", WRITE))
    assert door.woken == ["r"]
    assert granted(door.ask("r", READ))


def test_a_full_queue() -> None:
    """A client beyond the limit gets no entry; one that may enter needs none."""
    door = Door()
    assert granted(door.ask("w1", WRITE, max_waiters=0))
    assert not granted(door.ask("w2", WRITE, max_waiters=1))
    refused = door.ask("w3", WRITE, max_waiters=1)
    assert isinstance(refused, Refused)
    assert refused.why == FULL
    assert isinstance(door.ask("w2", WRITE, max_waiters=1), Waiting)
    assert door.queue == [("w2", WRITE)]


def test_when_to_ask_again() -> None:
    """At the holder's end, which no wake-up announces; never, if it has none."""
    door = Door()
    door.ask("w1", WRITE, lease=SECOND)
    assert told(door.ask("w2", WRITE)) == SECOND - MS
    door.wait(SECOND)
    assert granted(door.ask("w2", WRITE, lease=None))
    assert told(door.ask("w3", WRITE)) is None


def test_who_watches_the_record_is_told_the_same() -> None:
    """``next_attempt`` agrees, for stores whose waiters look for themselves."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("w2", WRITE)
    assert door.record is not None
    held = next_attempt(door.record, door.seat, "w2", door.now)
    assert held is not None
    assert held[1] == LEASE - MS
    door.release("w1")
    free = next_attempt(door.record, door.seat, "w2", door.now)
    assert free is not None
    assert free[1] == 0
    assert next_attempt(door.record, door.seat, "nobody", door.now) is None
    seen, foreign = peek(door.record, door.seat, door.now, semaphore=False)
    assert (seen, foreign) == (door.record, None)
