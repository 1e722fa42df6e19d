"""A worker with a full queue lets renewals go first, where both need one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from aiorwlock_remote.core.commands import Renew, Renewed, Withdraw
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import Batch, LocalConnection
from aiorwlock_remote.embedded.store import ConnectionRenewer
from aiorwlock_remote.embedded.worker import RenewalsFirst, Worker
from aiorwlock_remote.ports import EventLoop, Renewal
from tests.fixed_clock import StandingClock

ORDER = resource("order", 1)
STEP = Withdraw("here", Mode.WRITE, ("t",))
RENEWED = Renewed((Grant("t", Mode.WRITE, 1, 0, None),))


@dataclass
class File:
    """Notes who changes it; a renewal holds it until it is let go."""

    order: list[str] = field(default_factory=list[str])
    renewing: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    changed: threading.Event = field(default_factory=threading.Event)

    def open(self, timeout: float) -> None:
        """It is there."""

    def close(self) -> None:
        """It stays."""

    def steps(self, batch: Batch, timeout: float) -> list[Step | Exception]:
        del timeout
        commands = [command for _, command in batch]
        if isinstance(commands[0], Renew):
            self.renewing.set()
            assert self.let_go.wait(30)
            self.order.append("renewed")
            return [Step(UNUSED_DOORMAN, None, RENEWED)]
        self.order.append("step")
        self.changed.set()
        return [KeyError("no answer is wanted")] * len(commands)


class Here:
    """A loop that runs nothing."""

    clock = StandingClock()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """It is not wanted."""


def test_a_step_waits_for_the_renewal_that_has_begun() -> None:
    file, first = File(), RenewalsFirst()
    connection = cast("LocalConnection", file)
    host = cast("EventLoop", Here())
    worker = Worker(connection, host, "test", lambda *_: None, first)
    renewer = ConnectionRenewer(connection, StandingClock(), first)

    def renew() -> None:
        renewer.renew([Renewal(ORDER, "t", 1)], 30.0)

    renewals = threading.Thread(target=renew)
    renewals.start()
    assert file.renewing.wait(30)
    worker.step(ORDER, STEP).log_failure()
    assert not file.changed.wait(0.05)
    file.let_go.set()
    renewals.join()
    assert file.changed.wait(30)
    assert file.order == ["renewed", "step"]
    worker.close().log_failure()
