"""Readers and writers of one process are sent to the store in the order they came."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote.core.commands import Acquire, Claim, Granted, Waiting
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import StoreSettings
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue
from tests.runtime.test_wait_queue_random_histories import ORDER, FakeStore

READ, WRITE = Mode.READ, Mode.WRITE
SECOND = 1_000_000


class Process:
    """One process whose store answers on demand."""

    def __init__(self) -> None:
        self.fake = FakeStore(PollPolicy())
        client = StoreClient(self.fake, StoreSettings("here"))  # type: ignore[arg-type]
        client.store = self.fake  # type: ignore[assignment]
        self.client = client
        self.client_id: WaitQueue = client.queues.queue(ORDER)

    def joins(self, ticket: str) -> TaskWaiter:
        """A task asks; the first letter of its ticket says in which mode."""
        waiter = TaskWaiter(Claim(ticket, 30 * SECOND), Policy.FAIR)
        self.client_id.join(waiter, mode_of(ticket))
        return waiter

    @property
    def sent(self) -> list[list[str]]:
        """The tickets in each acquire under way."""
        commands = [command for command, _ in self.fake.under_way]
        return [
            [claim.ticket for claim in command.claims]
            for command in commands
            if isinstance(command, Acquire)
        ]

    def grants(self) -> None:
        """The request that was sent first is granted."""
        command, pending = self.fake.under_way.pop(0)
        assert isinstance(command, Acquire)
        now = self.fake.now
        grants = tuple(claim.grant(command.mode, 1, now) for claim in command.claims)
        pending.set_result(Granted(grants, now, placed=command.more > 0))

    def answers(self, answer: Any) -> None:  # noqa: ANN401 - a reply or an error
        """The request that was sent first is answered."""
        _, pending = self.fake.under_way.pop(0)
        if isinstance(answer, BaseException):
            pending.set_exception(answer)
        else:
            pending.set_result(answer)


def mode_of(ticket: str) -> Mode:
    return READ if ticket.startswith("r") else WRITE


@pytest.fixture
def process() -> Process:
    process = Process()
    for ticket in ("r1", "r2", "w1", "r3", "w2"):
        process.joins(ticket)
    assert process.sent == [["r1"]]
    return process


def test_a_writer_follows_the_readers_before_it(process: Process) -> None:
    process.grants()
    assert process.sent == [["r2"], ["w1"]]
    process.grants()
    assert process.sent == [["w1"], ["r3"]]


def test_an_entry_counts_for_the_readers_behind_it(process: Process) -> None:
    """The process waits as reader: r2 and r3 share that entry, as in any queue."""
    process.answers(Waiting(0, None))
    assert process.sent == [["w1"]]
    process.client.queues.wake(ORDER, 0)
    assert process.sent == [["w1"], ["r1", "r2", "r3"]]


def test_a_failed_request_holds_nobody_back(process: Process) -> None:
    process.answers(BackendUnavailable(what="away"))
    assert process.sent == [["w1"]]
    process.fake.clock.seconds += 5
    process.client.queues._fire()
    assert process.sent == [["w1"], ["r2", "r3"]]


def test_a_wake_up_lets_no_writer_pass(process: Process) -> None:
    process.client.queues.wake(ORDER, 0)
    assert process.sent == [["r1"]]
    process.grants()
    assert process.sent == [["r2"], ["w1"]]


def test_a_writer_that_leaves_holds_nobody_back() -> None:
    process = Process()
    for ticket in ("r1", "r2"):
        process.joins(ticket)
    writer = process.joins("w1")
    process.joins("r3")
    process.client_id.leave(writer, WRITE)
    process.grants()
    assert process.sent == [["r2"]]
    process.grants()
    assert process.sent == [["r3"]]


def test_a_writer_without_readers_before_it_is_sent_at_once() -> None:
    process = Process()
    process.joins("r1")
    process.joins("w1")
    process.joins("r2")
    assert process.sent == [["r1"], ["w1"]]
    process.grants()
    assert process.sent == [["w1"], ["r2"]]


def test_a_task_that_was_not_sent_is_not_answered(process: Process) -> None:
    """A writer that gives up meanwhile does not report a reply it never had."""
    writer = process.joins("w3")
    assert process.client_id.said(writer, WRITE) is None
