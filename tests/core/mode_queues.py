"""Several clients' queues and one store, in virtual time, with faults.

Requests of one client arrive in the order sent (the contract of ``Store.step``). They
and the replies take time; an acquire, or any reply, may be lost, and so may wake-ups.
Messages of pushed grants may be lost, late, doubled and forged, and the clients' clocks
run at other speeds than the store's. What the runtime does around a ``ModeQueue`` is
done here by the shortest means.
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
    NotHeld,
    Refused,
    Release,
    Released,
    Reply,
    Waiting,
    Withdraw,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.mode_queue import Effects, ModeQueue, Waiter
from aiorwlock_remote.core.pushed import MAX_DRIFT, PushedGrant, proof_of
from aiorwlock_remote.core.ticket import LOCK_MODES, Mode, Policy
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.transition import transition

POLL_POLICY = PollPolicy()
PUSHING = PollPolicy(claim_window=0.3, pushes=True)
LEASE = 60_000_000
TRAVEL = 0.010
GIVE_UP = 0.5
START = 1_000.0


class Visit(NamedTuple):
    """One task, in ms: when it comes, how long it holds, when it gives up."""

    client_id: str
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
    inside: bool = False


@dataclass
class Sim:
    """Runs visits to their end.

    ``faulty``: messages get lost, and those of pushed grants also late, doubled and
    forged. ``pushes``: whether the store pushes grants.
    """

    seed: int
    faulty: bool
    pushes: bool = False
    record: Doorman = field(default_factory=Doorman)
    seat: MutexRecord | None = None
    now: float = START
    served: dict[tuple[str, Mode], list[int]] = field(default_factory=dict)
    longest_idle: float = 0.0
    requests: int = 0
    entered_by_message: int = 0
    last_fence: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._lanes: dict[tuple[str, Mode], ModeQueue] = {}
        self._arrived: dict[str, float] = {}
        self._idle_since: float | None = None
        self._speeds: dict[str, float] = {}
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

    def lane(self, client_id: str, mode: Mode) -> ModeQueue:
        """Return the queue of a client for a mode."""
        poll_policy = PUSHING if self.pushes else POLL_POLICY
        return self._lanes.setdefault(
            (client_id, mode), ModeQueue(client_id, mode, poll_policy)
        )

    def local(self, client_id: str) -> float:
        """Return what a client's clock shows now; it may be slow or fast."""
        return START + (self.now - START) * self._speed(client_id)

    def _speed(self, client_id: str) -> float:
        drift = MAX_DRIFT if self.pushes else 0.0
        slow = 1 / (1 + drift)
        return self._speeds.setdefault(client_id, self._random.uniform(slow, 1 + drift))

    def _true(self, client_id: str, local: float) -> float:
        return START + (local - START) / self._speed(client_id)

    # ---------------------------------------------------------------- tasks

    def _come(self, task: Task) -> None:
        visit = task.visit
        lane = self.lane(visit.client_id, visit.mode)
        self._send(visit.client_id, visit.mode, lane.join(task.waiter))
        if visit.patience is not None:
            self._at(visit.patience / 1e3, partial(self._give_up, task))

    def _give_up(self, task: Task) -> None:
        if task.outcome:
            return
        task.outcome = "left"
        lane = self.lane(task.visit.client_id, task.visit.mode)
        self._send(task.visit.client_id, task.visit.mode, lane.leave(task.waiter))

    def _tell(self, client_id: str, mode: Mode, effects: Effects) -> None:
        lane = self.lane(client_id, mode)
        by_waiter = {task.waiter: task for task in self.tasks}
        for waiter in effects.served:
            task = by_waiter[waiter]
            assert not task.outcome
            task.outcome = "served"
            self.served.setdefault((client_id, mode), []).append(task.number)
            self._enter(task)
        if effects.confirmed is not None:
            task = by_waiter[effects.confirmed]
            if task.inside:
                self._check_anchor(task)
        if effects.lost is not None:
            self._lose(by_waiter[effects.lost[0]])
            assert not effects.stray, "the ticket was granted twice"
        for waiter in effects.turned_away:
            by_waiter[waiter].outcome = "error"
            keep = bool(lane.waiters)  # as Drive does: whatever became of it
            undo = Withdraw(client_id, mode, (waiter.ticket,), keep=keep)
            self._post(client_id, undo, lambda _reply: None)
        self._send(client_id, mode, effects.send)
        self._watch(client_id, mode)

    def _enter(self, task: Task) -> None:
        waiter, visit = task.waiter, task.visit
        assert waiter.grant is not None
        for other in self.tasks:
            shared = other.visit.mode is visit.mode is Mode.READ
            assert shared or not other.inside, "two are inside"
        assert waiter.grant.fence >= self.last_fence, "a fence falls"
        self.last_fence = waiter.grant.fence
        task.inside = True
        self._check_anchor(task)
        if waiter.ends is not None:
            self.entered_by_message += 1
            ends = self._true(visit.client_id, waiter.ends)
            self._at(ends - self.now, partial(self._end_unconfirmed, task))
        self._at(visit.hold / 1e3, partial(self._release, task))

    def _check_anchor(self, task: Task) -> None:
        waiter = task.waiter
        assert waiter.grant is not None
        assert waiter.grant.expires is not None
        believed_until = waiter.ends
        if believed_until is None:
            believed_until = waiter.sent_at + LEASE / 1e6
        ends = self._true(task.visit.client_id, believed_until) * 1e6
        # A lease of 60 s may end later by a slow clock, for which its margin is there.
        drift = 0.0 if waiter.ends is not None else LEASE * MAX_DRIFT * self.pushes
        assert ends <= waiter.grant.expires + drift + 1, "believed for too long"

    def _end_unconfirmed(self, task: Task) -> None:
        if task.waiter.ends is not None:
            self._lose(task)

    def _lose(self, task: Task) -> None:
        if task.inside:
            task.outcome = "lost"
            self._release(task)

    def _release(self, task: Task) -> None:
        if not task.inside:
            return
        task.inside = False
        client_id = task.visit.client_id
        carried = []
        for mode in LOCK_MODES:
            lane = self.lane(client_id, mode)
            ask = lane.ask() if lane.watching else None
            if ask is not None:
                carried.append((mode, ask))
        sent_at = self.local(client_id)
        command = Release(task.waiter.ticket, None, tuple(ask for _, ask in carried))

        def released(reply: Reply | None) -> None:
            answers = reply.then if isinstance(reply, Released) else ()
            for index, (mode, _) in enumerate(carried):
                answer = answers[index] if answers else None
                self._answered(client_id, mode, answer, sent_at)

        self._post(client_id, command, released)

    # ------------------------------------------------------------- the plan

    def _send(
        self, client_id: str, mode: Mode, command: Acquire | Withdraw | None
    ) -> None:
        sent_at = self.local(client_id)

        def answered(reply: Reply | None) -> None:
            if isinstance(command, Acquire):
                self._answered(client_id, mode, reply, sent_at)

        if command is not None:
            self._post(client_id, command, answered)

    def _answered(
        self, client_id: str, mode: Mode, answer: Reply | None, sent_at: float
    ) -> None:
        lane = self.lane(client_id, mode)
        chance = self._random.random()
        if answer is None:
            effects = lane.failed(self.local(client_id), chance)
        else:
            assert isinstance(answer, Granted | Waiting | Refused | NotHeld)
            effects = lane.answered(answer, sent_at, self.local(client_id), chance)
        self._tell(client_id, mode, effects)

    def _watch(self, client_id: str, mode: Mode) -> None:
        lane = self.lane(client_id, mode)
        due = lane.due
        if due is not None:
            after = max(0.0, self._true(client_id, due) - self.now)
            self._at(after, lambda: self._look(client_id, mode, due))

    def _look(self, client_id: str, mode: Mode, due: float) -> None:
        lane = self.lane(client_id, mode)
        if lane.due == due:
            self._send(client_id, mode, lane.ask())

    def _hear(self, client_id: str, message: PushedGrant) -> None:
        effects = self.lane(client_id, Mode.WRITE).pushed(
            message, self.local(client_id)
        )
        if effects is None:
            self._ring(client_id)
        else:
            self._tell(client_id, Mode.WRITE, effects)

    def _ring(self, client_id: str) -> None:
        for mode in LOCK_MODES:
            lane = self.lane(client_id, mode)
            if not lane.idle:  # a call may overtake the answer that reports an entry
                self._send(client_id, mode, lane.wake())

    # ------------------------------------------------- the network and the store

    def _post(
        self, client_id: str, command: Command, then: Callable[[Reply | None], None]
    ) -> None:
        """Carry a command to the store and its reply back; None: the reply is lost."""
        self.requests += 1
        if isinstance(command, Acquire) and self._lost():
            self._at(GIVE_UP, lambda: then(None))
            return
        arrives = max(
            self.now + self._travel(), self._arrived.get(client_id, 0.0) + 1e-6
        )
        self._arrived[client_id] = arrives

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
        for client_id in step.wakes:
            if step.pushed is not None:
                self._push(client_id, PushedGrant.of(step.pushed))
            elif not self._lost():
                self._at(self._travel(), partial(self._ring, client_id))
        if self.record.grants or not self.record.queue:
            since = self._idle_since or self.now
            self.longest_idle = max(self.longest_idle, self.now - since)
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.now
        return step.reply

    def _push(self, client_id: str, message: PushedGrant) -> None:
        if not self._lost():
            self._at(self._travel(), partial(self._hear, client_id, message))
        # Late, also past the end of the grant: alone, or as a second copy.
        while self._lost():
            late = partial(self._hear, client_id, message)
            self._at(self._random.uniform(0.0, 2.0), late)
        if self._lost():
            ends = message.expires + 1_000_000
            fence = message.fence + self._random.randrange(3)
            proof = proof_of("not the ticket", message.since, ends, fence)
            forged = PushedGrant(fence, message.since, ends, proof)
            self._at(self._travel(), partial(self._hear, client_id, forged))

    def _travel(self) -> float:
        # Longer than a margin, and than a claim window.
        late = self.pushes and self.faulty and self._random.random() < 0.1
        return self._random.uniform(0.0001, GIVE_UP if late else TRAVEL)

    def _lost(self) -> bool:
        return self.faulty and self._random.random() < 0.15

    def _at(self, after: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + after, next(self._order), happen))
