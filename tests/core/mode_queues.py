"""Several clients' queues and one store, in virtual time, with faults.

Requests of one client arrive in the order sent (the contract of ``Store.step``). They
and the replies take time; an acquire, or any reply, may be lost, and so may wake-ups.
What the runtime does around a ``ModeQueue`` is done here by the shortest means.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from aiorwlock_remote.core.commands import (
    Acquire,
    Claim,
    Command,
    Granted,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.transition import transition

PACE = PollPolicy()
LEASE = 60_000_000
TRAVEL = 0.010
GIVE_UP = 0.5
START = 1_000.0


class Visit(NamedTuple):
    """One task, in ms: when it comes, how long it holds, when it gives up."""

    gate: str
    mode: Mode
    after: int
    hold: int
    patience: int | None


@dataclass(eq=False)
class Task:
    """The history of one visit."""

    visit: Visit
    number: int
    waiter: Waiter
    outcome: str = ""


@dataclass
class Sim:
    """Runs visits to their end. ``faulty``: messages get lost."""

    seed: int
    faulty: bool
    record: Doorman = field(default_factory=Doorman)
    seat: MutexRecord | None = None
    now: float = START
    served: dict[tuple[str, Mode], list[int]] = field(default_factory=dict)
    longest_idle: float = 0.0
    requests: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._lanes: dict[tuple[str, Mode], ModeQueue] = {}
        self._arrived: dict[str, float] = {}
        self._idle_since: float | None = None
        self.tasks: list[Task] = []

    def run(self, visits: list[Visit]) -> None:
        """Run until nothing is left to happen."""
        for number, visit in enumerate(visits):
            claim = Claim(f"t{number}", LEASE)
            task = Task(visit, number, Waiter(claim, Policy.FAIR))
            self.tasks.append(task)
            self._at(visit.after / 1e3, partial(self._come, task))
        while self._agenda:
            self.now, _, happen = heapq.heappop(self._agenda)
            happen()
            assert self.requests < 200 * (1 + len(visits)), "asking without end"

    def lane(self, gate: str, mode: Mode) -> ModeQueue:
        """Return the queue of a client for a mode."""
        return self._lanes.setdefault((gate, mode), ModeQueue(gate, mode, PACE))

    # ---------------------------------------------------------------- tasks

    def _come(self, task: Task) -> None:
        visit = task.visit
        lane = self.lane(visit.gate, visit.mode)
        self._send(visit.gate, visit.mode, lane.join(task.waiter))
        if visit.patience is not None:
            self._at(visit.patience / 1e3, partial(self._give_up, task))

    def _give_up(self, task: Task) -> None:
        if task.outcome:
            return
        task.outcome = "left"
        lane = self.lane(task.visit.gate, task.visit.mode)
        self._send(task.visit.gate, task.visit.mode, lane.leave(task.waiter))

    def _tell(self, gate: str, mode: Mode, news: Effects) -> None:
        lane = self.lane(gate, mode)
        by_waiter = {task.waiter: task for task in self.tasks}
        for waiter in news.served:
            task = by_waiter[waiter]
            assert not task.outcome
            task.outcome = "served"
            self.served.setdefault((gate, mode), []).append(task.number)
            self._check_anchor(waiter)
            self._at(task.visit.hold / 1e3, partial(self._release, task))
        for waiter in news.turned_away:
            by_waiter[waiter].outcome = "error"
            keep = bool(lane.waiters)  # as Drive does: whatever became of it
            undo = Withdraw(gate, mode, (waiter.ticket,), keep=keep)
            self._post(gate, undo, lambda _reply: None)
        self._send(gate, mode, news.send)
        self._watch(gate, mode)

    def _check_anchor(self, waiter: Waiter) -> None:
        assert waiter.grant is not None
        assert waiter.grant.expires is not None
        believed_until = waiter.sent_at * 1e6 + LEASE
        assert believed_until <= waiter.grant.expires + 1, "believed for too long"

    def _release(self, task: Task) -> None:
        gate = task.visit.gate
        carried = []
        for mode in Mode:
            lane = self.lane(gate, mode)
            ask = lane.ask() if lane.watching else None
            if ask is not None:
                carried.append((mode, ask))
        sent_at = self.now
        command = Release(task.waiter.ticket, None, tuple(ask for _, ask in carried))

        def released(reply: Reply | None) -> None:
            answers = reply.then if isinstance(reply, Released) else ()
            for index, (mode, _) in enumerate(carried):
                answer = answers[index] if answers else None
                self._answered(gate, mode, answer, sent_at)

        self._post(gate, command, released)

    # ------------------------------------------------------------- the plan

    def _send(self, gate: str, mode: Mode, command: Acquire | Withdraw | None) -> None:
        sent_at = self.now

        def answered(reply: Reply | None) -> None:
            if isinstance(command, Acquire):
                self._answered(gate, mode, reply, sent_at)

        if command is not None:
            self._post(gate, command, answered)

    def _answered(
        self, gate: str, mode: Mode, answer: Reply | None, sent_at: float
    ) -> None:
        lane = self.lane(gate, mode)
        chance = self._random.random()
        if answer is None:
            news = lane.failed(self.now, chance)
        else:
            assert isinstance(answer, Granted | Waiting | Refused)
            news = lane.answered(answer, sent_at, self.now, chance)
        self._tell(gate, mode, news)

    def _watch(self, gate: str, mode: Mode) -> None:
        lane = self.lane(gate, mode)
        due = lane.due
        if due is not None:
            self._at(max(0.0, due - self.now), lambda: self._look(gate, mode, due))

    def _look(self, gate: str, mode: Mode, due: float) -> None:
        lane = self.lane(gate, mode)
        if lane.due == due:
            self._send(gate, mode, lane.ask())

    def _ring(self, gate: str) -> None:
        for mode in Mode:
            lane = self.lane(gate, mode)
            if not lane.idle:  # a call may overtake the answer that tells of a place
                self._send(gate, mode, lane.wake())

    # ------------------------------------------------- the network and the store

    def _post(
        self, gate: str, command: Command, then: Callable[[Reply | None], None]
    ) -> None:
        """Carry a command to the store and its reply back; None: the reply is lost."""
        self.requests += 1
        if isinstance(command, Acquire) and self._lost():
            self._at(GIVE_UP, lambda: then(None))
            return
        arrives = max(self.now + self._travel(), self._arrived.get(gate, 0.0) + 1e-6)
        self._arrived[gate] = arrives

        def carry_out() -> None:
            reply = self._step(command)
            if self._lost():
                self._at(GIVE_UP, lambda: then(None))
            else:
                self._at(self._travel(), lambda: then(reply))

        self._at(arrives - self.now, carry_out)

    def _step(self, command: Command) -> Reply:
        now = round(self.now * 1e6)
        step = transition(self.record, self.seat, command, now, now)
        self.record, self.seat = step.record, step.seat
        for gate in step.wakes:
            if not self._lost():
                self._at(self._travel(), partial(self._ring, gate))
        if self.record.grants or not self.record.queue:
            since = self._idle_since or self.now
            self.longest_idle = max(self.longest_idle, self.now - since)
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.now
        return step.reply

    def _travel(self) -> float:
        return self._random.uniform(0.0001, TRAVEL)

    def _lost(self) -> bool:
        return self.faulty and self._random.random() < 0.15

    def _at(self, after: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + after, next(self._order), happen))
