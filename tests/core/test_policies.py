"""Policies that favour one side, by design."""

from __future__ import annotations

from aiorwlock_remote.core.commands import CLAIM_WINDOW, Waiting
from aiorwlock_remote.core.ticket import Policy
from tests.core.resource import MS, READ, WRITE, Door, granted


def test_barging() -> None:
    """An unfair mutex passes the queue, never a holder."""
    door = Door()
    door.ask("w1", WRITE)
    door.ask("w2", WRITE)
    assert not granted(door.attempt("b", WRITE, Policy.BARGE))
    door.release("w1")
    assert granted(door.attempt("b", WRITE, Policy.BARGE))
    door.release("b")
    assert door.woken == ["w2"], "offered anew: it could not come"


def test_the_writer_policy() -> None:
    """Writers pass the readers that a write phase left behind."""
    door = Door()
    door.ask("w1", WRITE, policy=Policy.WRITER)
    door.ask("r", READ, policy=Policy.WRITER)
    door.ask("w2", WRITE, policy=Policy.WRITER)
    door.release("w1")
    assert not granted(door.ask("r", READ, policy=Policy.WRITER))
    assert granted(door.ask("w2", WRITE, policy=Policy.WRITER))


def test_a_called_reader_that_lets_pass_comes_back() -> None:
    """Its next step, when the readers' window is over, calls the writer."""
    door = Door()
    door.ask("w1", WRITE, policy=Policy.WRITER)
    door.ask("r", READ, policy=Policy.WRITER)
    door.ask("w2", WRITE, policy=Policy.WRITER)
    door.release("w1")
    again = door.ask("r", READ, policy=Policy.WRITER)
    assert isinstance(again, Waiting)
    assert again.retry_after == CLAIM_WINDOW - MS, "a step takes 1 ms"
    door.now += CLAIM_WINDOW
    door.ask("r", READ, policy=Policy.WRITER)
    assert door.woken == ["w2"]


def test_the_reader_policy() -> None:
    """Readers pass every writer that does not hold it yet."""
    door = Door()
    door.ask("r1", READ, policy=Policy.READER)
    assert not granted(door.ask("w", WRITE, policy=Policy.READER))
    assert granted(door.ask("r2", READ, policy=Policy.READER))
    door.release("r1")
    door.release("r2")
    assert door.woken == ["w"]
    assert granted(door.ask("r3", READ, policy=Policy.READER))
    assert not granted(door.ask("w", WRITE, policy=Policy.READER))
