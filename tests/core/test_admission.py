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
from aiorwlock_remote.core.transition import next_attempt, peek, turns_ahead
from tests.core.resource import (
    LEASE,
    MS,
    READ,
    SECOND,
    WRITE,
    OneLock,
    ask,
    granted,
    retry_after,
    up,
)


def test_phases_are_fair() -> None:
    """A writer, then all readers waiting at that moment, then the oldest writer."""
    lock = OneLock()
    assert granted(lock.ask("w1", WRITE))
    for client_id, mode in (("r1", READ), ("w2", WRITE), ("r2", READ), ("w3", WRITE)):
        assert not granted(lock.ask(client_id, mode))
    lock.release("w1")
    assert lock.woken == ["r1", "r2"]
    assert not granted(lock.ask("w2", WRITE))
    assert granted(lock.ask("r2", READ))
    assert not granted(lock.ask("r3", READ)), "came later than the writers"
    assert granted(lock.ask("r1", READ))
    lock.release("r1")
    assert lock.woken == []
    lock.release("r2")
    assert lock.woken == ["w2"]
    assert not granted(lock.ask("w3", WRITE))
    assert granted(lock.ask("w2", WRITE))
    lock.release("w2")
    assert lock.woken == ["r3"]


def test_readers_join_until_a_writer_waits() -> None:
    """Readers join again when the writer has gone; those that waited are called."""
    lock = OneLock()
    assert granted(lock.ask("r1", READ))
    assert granted(lock.ask("r2", READ))
    assert not granted(lock.ask("w", WRITE))
    assert not granted(lock.ask("r3", READ))
    lock.leave("w", WRITE)
    assert lock.woken == ["r3"]
    assert granted(lock.ask("r3", READ))


def test_the_window_of_the_admitted_closes() -> None:
    """A reader that does not come within the window waits behind the writer."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("r1", READ)
    lock.ask("w2", WRITE)
    lock.release("w1")
    assert retry_after(lock.ask("w2", WRITE)) == CLAIM_WINDOW - MS
    lock.wait(CLAIM_WINDOW)
    assert not granted(lock.ask("r1", READ))
    assert granted(lock.ask("w2", WRITE))


def test_a_dead_reader_costs_one_window() -> None:
    """It does not cost another window at the end of every write phase."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("dead", READ)
    lock.ask("w2", WRITE)
    lock.ask("w3", WRITE)
    lock.release("w1")
    lock.wait(CLAIM_WINDOW)
    assert granted(lock.ask("w2", WRITE))
    lock.release("w2")
    assert lock.woken == ["w3"]
    assert granted(lock.ask("w3", WRITE))


def test_a_window_that_a_foreign_program_sat_through_opens_anew() -> None:
    """Admitted readers that came in vain are called again after that program."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("r", READ)
    lock.ask("w2", WRITE)
    lock.release("w1")
    assert lock.woken == ["r"]
    lock.seat = MutexRecord("thief,1", None)
    assert not granted(lock.ask("r", READ))
    lock.seat = None
    assert not granted(lock.ask("w2", WRITE))
    assert lock.woken == ["r"]
    assert granted(lock.ask("r", READ))


def test_a_late_reader_is_admitted_again_when_it_asks() -> None:
    """It keeps its entry, and loses only the window it missed."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("r", READ)
    lock.ask("w2", WRITE)
    lock.release("w1")
    lock.wait(CLAIM_WINDOW)
    lock.ask("w2", WRITE)
    assert not granted(lock.ask("r", READ))
    lock.ask("w3", WRITE)
    lock.release("w2")
    assert lock.woken == ["r"]
    assert granted(lock.ask("r", READ))


def test_how_many_turns_come_before() -> None:
    """Readers enter together; an upgrader is the next one."""
    lock = OneLock()
    lock.ask("held", READ)
    for client_id, mode in (("w1", WRITE), ("r", READ), ("w2", WRITE)):
        lock.ask(client_id, mode)
    lock.do(up("held", "writes"))
    turns = [turns_ahead(lock.state, who) for who in ("held", "w1", "r", "w2", "x")]
    assert turns == [0, 0, 0, 2, 0]


def test_a_late_head_keeps_its_order() -> None:
    """It lost one claim; when it asks, it is the head again."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    for client_id in ("slow", "w3", "w4"):
        lock.ask(client_id, WRITE)
    lock.release("w1")
    assert lock.woken == ["slow"]
    assert retry_after(lock.ask("w3", WRITE)) == CLAIM_WINDOW - MS
    lock.wait(CLAIM_WINDOW)
    assert granted(lock.ask("w3", WRITE))
    assert not granted(lock.ask("slow", WRITE))
    lock.release("w3")
    assert lock.woken == ["slow"]
    assert not granted(lock.ask("w4", WRITE))
    assert granted(lock.ask("slow", WRITE))


def test_a_dead_head_is_forgotten_in_time() -> None:
    """Its entry lives for its time to live, and no longer."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("dead", WRITE)
    lock.wait(ENTRY_TTL)
    lock.ask("r", READ)
    assert lock.queue == [("r", READ)]


def test_the_offer_of_a_free_resource_is_in_the_reply() -> None:
    """A client to which the very step offers the resource is to come at once."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    carried = ask("r", READ)
    for _ in range(MAX_LOCAL_TURNS):
        lock.release(lock.holders[0], ask("w1", WRITE, f"t{lock.now}"))
    reply = lock.release(lock.holders[0], carried)
    assert isinstance(reply, Released)
    assert retry_after(reply.then[0]) == 0
    assert lock.woken == ["r"]


@pytest.mark.parametrize("mode", LOCK_MODES)
def test_an_attempt_without_entry_is_refused_behind_others(mode: Mode) -> None:
    """An acquire without an entry is refused while others are ahead or hold."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    held = lock.attempt("t", mode)
    assert isinstance(held, Refused)
    assert (held.why, held.retry_after) == (HELD, LEASE - MS)
    lock.ask("w2", WRITE)
    lock.release("w1")
    ahead = lock.attempt("t", mode)
    assert isinstance(ahead, Refused)
    assert ahead.why == AHEAD
    assert lock.queue == [("w2", WRITE)]


def test_an_attempt_without_entry_is_refused_behind_admitted_readers() -> None:
    """Admitted readers are ahead of it after a write phase."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("r", READ)
    lock.release("w1")
    refused = lock.attempt("t", WRITE)
    assert isinstance(refused, Refused)
    assert refused.why == AHEAD


def test_readers_that_wait_are_before_a_writer_that_comes() -> None:
    """This holds also when the phase that ended was a foreign program's."""
    lock = OneLock()
    lock.seat = MutexRecord("thief,1")
    assert not granted(lock.ask("r", READ))
    lock.seat = None
    assert not granted(lock.ask("w", WRITE))
    assert lock.woken == ["r"]
    assert granted(lock.ask("r", READ))


def test_a_full_queue() -> None:
    """A client beyond the limit gets no entry; one that may enter needs none."""
    lock = OneLock()
    assert granted(lock.ask("w1", WRITE, max_waiters=0))
    assert not granted(lock.ask("w2", WRITE, max_waiters=1))
    refused = lock.ask("w3", WRITE, max_waiters=1)
    assert isinstance(refused, Refused)
    assert refused.why == FULL
    assert isinstance(lock.ask("w2", WRITE, max_waiters=1), Waiting)
    assert lock.queue == [("w2", WRITE)]


def test_when_to_ask_again() -> None:
    """At the holder's end, which no wake-up announces; never, if it has none."""
    lock = OneLock()
    lock.ask("w1", WRITE, lease=SECOND)
    assert retry_after(lock.ask("w2", WRITE)) == SECOND - MS
    lock.wait(SECOND)
    assert granted(lock.ask("w2", WRITE, lease=None))
    assert retry_after(lock.ask("w3", WRITE)) is None


def test_next_attempt_agrees_with_the_reply() -> None:
    """``next_attempt`` agrees, for stores whose waiters look for themselves."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("w2", WRITE)
    assert lock.record is not None
    held = next_attempt(lock.record, lock.seat, "w2", lock.now)
    assert held is not None
    assert held[1] == LEASE - MS
    lock.release("w1")
    free = next_attempt(lock.record, lock.seat, "w2", lock.now)
    assert free is not None
    assert free[1] == 0
    assert next_attempt(lock.record, lock.seat, "nobody", lock.now) is None
    seen, foreign = peek(lock.record, lock.seat, lock.now, semaphore=False)
    assert (seen, foreign) == (lock.record, None)
