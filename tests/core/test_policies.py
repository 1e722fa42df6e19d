"""Policies that favour one side, by design."""

from __future__ import annotations

from aiorwlock_remote.core.commands import CLAIM_WINDOW, Waiting
from aiorwlock_remote.core.ticket import Policy
from tests.core.resource import MS, READ, WRITE, OneLock, granted


def test_barging() -> None:
    """An unfair mutex passes the queue, never a holder."""
    lock = OneLock()
    lock.ask("w1", WRITE)
    lock.ask("w2", WRITE)
    assert not granted(lock.attempt("b", WRITE, Policy.BARGE))
    lock.release("w1")
    assert granted(lock.attempt("b", WRITE, Policy.BARGE))
    lock.release("b")
    assert lock.woken == ["w2"], "offered anew: it could not come"


def test_the_writer_policy() -> None:
    """Writers pass the readers that a write phase left behind."""
    lock = OneLock()
    lock.ask("w1", WRITE, policy=Policy.WRITER)
    lock.ask("r", READ, policy=Policy.WRITER)
    lock.ask("w2", WRITE, policy=Policy.WRITER)
    lock.release("w1")
    assert not granted(lock.ask("r", READ, policy=Policy.WRITER))
    assert granted(lock.ask("w2", WRITE, policy=Policy.WRITER))


def test_a_called_reader_that_lets_pass_comes_back() -> None:
    """Its next step, when the readers' window is over, calls the writer."""
    lock = OneLock()
    lock.ask("w1", WRITE, policy=Policy.WRITER)
    lock.ask("r", READ, policy=Policy.WRITER)
    lock.ask("w2", WRITE, policy=Policy.WRITER)
    lock.release("w1")
    again = lock.ask("r", READ, policy=Policy.WRITER)
    assert isinstance(again, Waiting)
    assert again.retry_after == CLAIM_WINDOW - MS, "a step takes 1 ms"
    lock.now += CLAIM_WINDOW
    lock.ask("r", READ, policy=Policy.WRITER)
    assert lock.woken == ["w2"]


def test_the_reader_policy() -> None:
    """Readers pass every writer that does not hold it yet."""
    lock = OneLock()
    lock.ask("r1", READ, policy=Policy.READER)
    assert not granted(lock.ask("w", WRITE, policy=Policy.READER))
    assert granted(lock.ask("r2", READ, policy=Policy.READER))
    lock.release("r1")
    lock.release("r2")
    assert lock.woken == ["w"]
    assert granted(lock.ask("r3", READ, policy=Policy.READER))
    assert not granted(lock.ask("w", WRITE, policy=Policy.READER))
