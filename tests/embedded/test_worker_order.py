"""The commands for one resource keep their order while its record is kept locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from aiorwlock_remote.core.commands import Withdraw
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import Batch, KeptLocked, LocalConnection
from aiorwlock_remote.embedded.worker import Worker
from aiorwlock_remote.ports import EventLoop
from tests.fixed_clock import StandingClock

ORDER, OTHER = resource("order", 1), resource("order", 2)


def withdraw(ticket: str) -> Withdraw:
    return Withdraw("here", Mode.WRITE, (ticket,))


@dataclass
class Files:
    """Notes what is carried out; the first step finds the record kept locked."""

    kept: bool = True
    carried_out: list[str] = field(default_factory=list[str])
    changed: threading.Condition = field(default_factory=threading.Condition)

    def close(self) -> None:
        pass

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        del timeout
        outcomes: list[Step | Exception] = []
        with self.changed:
            for of, command in batch:
                assert isinstance(command, Withdraw)
                if of == ORDER and self.kept:
                    self.kept = False
                    outcomes.append(KeptLocked(what="kept locked"))
                    self.carried_out.append("kept")
                else:
                    outcomes.append(KeyError("no answer is wanted"))
                    self.carried_out += command.tickets
            self.changed.notify_all()
        return outcomes

    def wait_for(self, ticket: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: ticket in self.carried_out, 30)


class Here:
    """A loop that runs nothing, and whose clock stands still."""

    def __init__(self) -> None:
        self.clock = StandingClock()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        pass


def test_a_command_does_not_overtake_one_that_was_put_back() -> None:
    files, here = Files(), Here()
    connection = cast("LocalConnection", files)
    worker = Worker(connection, cast("EventLoop", here), "test", lambda *_: None)

    def send(of: Resource, ticket: str) -> None:
        worker.step(of, withdraw(ticket)).log_failure()

    send(ORDER, "first")
    files.wait_for("kept")
    send(ORDER, "second")  # the record is free by now, but it is not "second"'s turn
    send(OTHER, "other")
    files.wait_for("other")
    assert files.carried_out == ["kept", "other"]
    here.clock.seconds += 1.0
    files.wait_for("second")
    assert files.carried_out == ["kept", "other", "first", "second"]
    worker.close().log_failure()
