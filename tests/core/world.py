"""One resource in virtual time: a store, its clients' beliefs, and the invariants."""

from __future__ import annotations

from collections.abc import Callable

from aiorwlock_remote.core.commands import (
    Acquire,
    Adopt,
    Claim,
    Command,
    Downgrade,
    Granted,
    NotHeld,
    Release,
    Released,
    Reply,
    Upgrade,
    Withdrawn,
)
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.transition import Step, transition
from tests.core.named import claims
from tests.core.register import Register
from tests.core.step_invariants import StepInvariants

Transition = Callable[[Doorman | None, MutexRecord | None, Command, int, int], Step]

MS, SECOND = 1_000, 1_000_000
WALL = 1_700_000_000 * SECOND
LEASES = (SECOND, 10 * SECOND, 3 * SECOND, None)


class SimulatedClients:
    """The stored doorman and mutex record, the clients' beliefs, and a register."""

    def __init__(
        self,
        policies: list[Policy],
        *,
        transition: Transition = transition,
        purges: bool = True,
    ) -> None:
        """``purges``: the store deletes an expired mutex record by itself."""
        self.record: Doorman | None = None
        self.seat: MutexRecord | None = None
        self.now = SECOND
        self.steps = 0
        self.waiting: dict[str, tuple[str, Mode]] = {}
        self.believed: dict[str, Grant] = {}
        self.policies = policies
        self._transition = transition
        self._purges = purges
        self._invariants = StepInvariants(strict_calls=policies == [Policy.FAIR])
        self.register = Register()
        self.sent: list[Command] = []
        self.post: list[Command] = []
        self.messages: list[tuple[str, Grant]] = []
        self.tickets = 0

    def step(self, command: Command) -> Step:
        """Do one atomic step and check it; do it twice to see that it is a function."""
        self.now += 1
        self.steps += 1
        seat = self.seat
        if seat and self._purges and seat.expires and seat.expires <= self.now:
            seat = None
        before = self.record or Doorman()
        step = self._do(self.record, seat, command)
        self._invariants.look(before, seat, command, step, self.now)
        self.record, self.seat = step.record, step.seat
        if step.pushed is not None:
            self.messages.append((step.wakes[0], step.pushed))
        self.sent.append(command)
        self._repeat(command, step)
        return step

    def claim(self, pick: int = 0) -> Claim:
        """Return a claim with a new ticket."""
        self.tickets += 1
        delay = 2 * SECOND if pick == 13 else 0
        return Claim(f"t{self.tickets}", LEASES[pick % 4], lock_delay=delay)

    def hear(self, command: Command, reply: Reply) -> None:
        """Let the client get the reply."""
        answers = reply.then if isinstance(reply, Released) else (reply,)
        for answer in answers:
            for grant in answer.grants if isinstance(answer, Granted) else ():
                self.believed[grant.ticket] = grant
                self.waiting.pop(grant.ticket, None)
        if isinstance(command, Acquire) and isinstance(reply, NotHeld):
            self.believed.pop(command.claims[0].ticket, None)
        if isinstance(command, Release):
            self.believed.pop(command.ticket, None)
        match command:
            case Downgrade() | Upgrade() | Adopt() if isinstance(reply, Granted):
                self.believed.pop(command.ticket, None)
            case _:
                pass

    def _do(
        self, record: Doorman | None, seat: MutexRecord | None, command: Command
    ) -> Step:
        return self._transition(record, seat, command, self.now, WALL + self.now)

    def _repeat(self, command: Command, step: Step) -> None:
        again = self._do(step.record, step.seat, command)
        reply, second = step.reply, again.reply
        if isinstance(reply, Granted):
            assert isinstance(second, Granted)
            assert set(reply.grants) <= set(second.grants)
        if isinstance(command, Release) and command.ticket not in claims(command):
            assert isinstance(reply, Released)
            assert isinstance(second, Released)
            assert not second.held or not reply.held
        if isinstance(reply, Withdrawn):
            assert isinstance(second, Withdrawn)
            assert not second.held
            assert again.record is step.record

    @property
    def record_seat(self) -> str | None:
        """The mutex record that we wrote."""
        return (self.record or Doorman()).seat
