"""The commands for one resource that wait for each other, and what is known of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import State
from aiorwlock_remote.core.commands import Acquire, Command, Renew, Reply, Withdraw
from aiorwlock_remote.core.names import Resource


@dataclass(slots=True)
class Line:
    """The commands for one resource, in order; the first is under way.

    ``sent``: when the last swap was, by ``Cas.clock``.
    ``unsure``: tickets asked for by a swap whose answer was lost, and when it was sent.
    ``seen``: what stood there last. ``fresh``: that was after the first command was
    begun. ``lost``: where swaps started whose answers were lost; ``doubtful``: one was
    of the first command. ``refusals``: of that; ``vain``: the last of them that showed
    nothing new; ``given_up``: how often the store gave it up.
    """

    resource: Resource
    waiting: deque[tuple[Command, Pending[Reply]]] = field(
        default_factory=deque[tuple[Command, Pending[Reply]]]
    )
    seen: State | None = None
    fresh: bool = False
    lost: list[State] = field(default_factory=list[State])
    unsure: dict[str, int] = field(default_factory=dict[str, int])
    sent: int = 0
    doubtful: bool = False
    refusals: int = 0
    vain: int = 0
    given_up: int = 0
    busy: bool = False

    def settle(self, state: State) -> None:
        """Nothing that is lost can still happen, and this stands there.

        Who is not in has not been let in by it, and its grant will be a new one.
        """
        if self.unsure:
            there = () if state.record is None else state.record.grants
            tickets = {grant.ticket for grant in there}
            self.unsure = {t: at for t, at in self.unsure.items() if t in tickets}


def may_guess(command: Command) -> bool:
    """Whoever asks to enter hopes that nobody is there."""
    return isinstance(command, Acquire)


def may_be_repeated(command: Command) -> bool:
    """Whether doing it again after it was done answers what was true the first time."""
    return isinstance(command, Acquire | Renew | Withdraw)
