"""What must hold at every moment of a run: how late, how long, in which order.

While nothing fails (``Plan.calm``), requests and messages take milliseconds. Then what
a task has given up is gone at once, who is next enters at once, in the order of
arrival, and renewals keep leases long. With faults or without them, nobody believes in
a grant for as long as the store keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiorwlock_remote import Held, sync
from aiorwlock_remote.core.doorman import Doorman, Grant, QueueEntry
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import MICROS, MIN_MARGIN
from aiorwlock_remote.runtime.lease import default_margin
from tests.simulation.judge import Visit
from tests.simulation.redis import REDIS_KINDS
from tests.simulation.world import BEGIN, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

MARGIN_KEPT = 0.4
"""Part of a margin that is left beside the errors of both clocks."""
LEFT_OF_A_LEASE = 0.6
"""Part of a lease that is left at least: it is renewed when a third is over."""
MESSAGE_SECONDS = 0.02
"""In which several requests are carried out and answered."""


@dataclass(frozen=True)
class Patience:
    """How late what may be, in seconds, if nothing fails; None: it is not judged."""

    look: float = 0.025
    """Between two looks at the store."""
    leaves: float = 0.15
    """What a task has given up may still be in the store."""
    enters: float | None = 0.15
    """Somebody may wait beside a resource that is free."""
    after_kills: float = 1.5
    """The same where processes are killed: each may be offered the resource."""
    ordered: bool = True
    """Whether the store knows who came first."""


PATIENCE = {
    # Refused swaps are repeated after pauses, and waiters poll.
    "tables": Patience(look=0.1, leaves=2.0, enters=None, ordered=False),
    **dict.fromkeys(REDIS_KINDS, Patience(look=0.05)),
}


@dataclass(frozen=True)
class Terms:
    """What a lock is asked for with: its lease in seconds, how many may be inside."""

    lease: float
    limit: int = 1


@dataclass(eq=False)
class Attempt:
    """What a task does about one resource, from its request until it has left.

    ``queues``: whether it waits in the queue, and for nothing else. ``entry``: when the
    entry in which it waits was made, at the earliest and at the latest: it is that of
    its process. ``served``: when another task of the process got a grant by it, and
    the entry became a new one. ``excused``: how many writers that came later may pass
    it. ``visit``: for the judge of the whole run.
    """

    process: SimulatedProcess
    task: str
    resource: str
    mode: str
    terms: Terms
    asked: float
    queues: bool
    entry: tuple[float, float]
    served: float = math.inf
    excused: int = 0
    waits: bool = True
    moves: bool = False
    visit: Visit | None = None

    def came(self, now: float) -> float:
        """Return when the entry was made, at the earliest."""
        # One reply may have grants for several tasks.
        new = now > self.served + MESSAGE_SECONDS
        return self.served if new else self.entry[0]


@dataclass(eq=False)
class Bounds:
    """Judges the store and the tasks of one run."""

    run: Run
    attempts: list[Attempt] = field(default_factory=list)
    """Of all tasks that have not left, in the order in which they asked."""

    def __post_init__(self) -> None:
        self.patience = PATIENCE.get(self.run.kind, Patience())
        self._since: dict[object, float] = {}
        self._passed: list[tuple[float, Attempt, str]] = []
        self._writer_left: dict[str, float] = {}

    def begin(self) -> None:
        if self.run.plan.calm:
            self.run.world.after(self.patience.look, self._look)

    # What the tasks do

    @contextmanager
    def attempt(
        self,
        process: SimulatedProcess,
        task: str,
        resource: str,
        mode: str,
        terms: Terms,
        *,
        queues: bool = True,
    ) -> Iterator[Attempt]:
        """Context manager: in its block a task asks for, uses and leaves a resource."""
        now = process.time
        one = Attempt(process, task, resource, mode, terms, now, queues, (now, now))
        beside = self._beside(one)
        one.entry = (
            min((other.came(now) for other in beside), default=now),
            min((other.entry[1] for other in beside if other.queues), default=now),
        )
        one.excused = max((other.excused for other in beside), default=0)
        self.attempts.append(one)
        try:
            yield one
        finally:
            self.attempts.remove(one)
            self._leaves(one)
            if one.waits:
                self._gives_up(one)

    @contextmanager
    def moving(self, one: Attempt) -> Iterator[None]:
        """Context manager: in its block a task asks for another mode."""
        one.moves = True
        try:
            yield
        except BaseException:
            self._excuse(one.resource)
            raise
        finally:
            one.moves = False
            self._leaves(one)

    def enters(self, held: Held | sync.Held, one: Attempt) -> None:
        """The task has its grant, or has it in another mode."""
        first, one.waits, one.mode = one.waits, False, held.mode
        self.believes(held, one)
        if first:
            self._note_order(one)

    def _gives_up(self, one: Attempt) -> None:
        # Its grant may have come meanwhile: then the entry is a new one.
        for other in self._beside(one):
            other.entry = other.entry[0], one.process.time
        if one.mode == "write":
            self._excuse(one.resource)

    def _excuse(self, resource: str) -> None:
        # A writer gave up, and readers that waited for it alone still wait: also behind
        # one that came later.
        for other in self._waiting(resource):
            other.excused += 1

    def _leaves(self, one: Attempt) -> None:
        if one.mode == "write":
            self._writer_left[one.resource] = one.process.time

    def _note_order(self, one: Attempt) -> None:
        now = one.process.time
        # Where processes are killed, who misses its claim is passed.
        waiting = [] if self.run.plan.kills else self._waiting(one.resource)
        for other in waiting:
            later = other.queues and self._came_later(one, other, now)
            if later and not self._may_pass(one, other, now):
                self._passed.append((now, other, one.task))
        # The entry of those that still wait is at the tail now, if it was of use.
        for other in self._beside(one):
            other.entry = other.came(now), now
            if one.queues:
                other.served = now

    def believes(self, held: Held | sync.Held, one: Attempt) -> None:
        """The task relies on its grant right now: the store has to keep it longer."""
        with self.run.world.no_stalls():
            left, now = held.expires_in, one.process.time
        if self.run.server.foreign.get(one.resource, 0.0) > now:
            self._fail(f"{one.task} is in {one.resource} beside a foreign program", now)
        if not left or self.run.server.in_doubt(now, {one.process.name}):
            return
        found = self._grant_of(held)
        if found is None:
            self._fail(f"{one.task} believes in {one.resource}, which it has lost", now)
            return
        grant, at_store, pushed = found
        assert grant.expires is not None
        ahead = now - self.run.world.now  # after a stall
        kept = (grant.expires - at_store) / MICROS - ahead
        margin = MIN_MARGIN if pushed else default_margin(one.terms.lease)
        if kept - left < MARGIN_KEPT * margin:
            text = f"{one.task} believes in {one.resource} for {left:.3f} s more"
            self._fail(f"{text}, the store keeps it for {kept:.3f} s", now)

    def _came_later(self, one: Attempt, other: Attempt, now: float) -> bool:
        """Whether ``other`` was in the queue before ``one`` for certain."""
        came = one.came(now)
        if one.process is not other.process:
            return self.patience.ordered and came > other.entry[1] + MESSAGE_SECONDS
        # Tasks of one mode share an entry, and are served in the order they asked.
        came = one.asked if one.mode == other.mode else min(came, one.asked)
        return one.queues and came > other.asked

    def _may_pass(self, one: Attempt, other: Attempt, now: float) -> bool:
        """Whether ``one``, which came later, may enter before ``other`` all the same.

        Readers and writers take turns: all readers that wait when a writer leaves are
        next.
        """
        if one.mode == other.mode:
            return False
        if one.mode == "read":
            # A writer's release is answered later than the readers' request.
            left = self._writer_left.get(one.resource, 0.0)
            waited = left > one.came(now) - MESSAGE_SECONDS
            return waited or self._is_written(one.resource)
        other.excused -= 1
        return other.excused >= 0

    def _is_written(self, resource: str) -> bool:
        inside = (one for one in self.attempts if not one.waits)
        return any((one.resource, one.mode) == (resource, "write") for one in inside)

    def _waiting(self, resource: str) -> list[Attempt]:
        return [o for o in self.attempts if o.waits and o.resource == resource]

    def _beside(self, one: Attempt) -> list[Attempt]:
        """Return the attempts that wait with ``one``, for one entry in the queue."""
        key, waiting = (one.process, one.mode), self._waiting(one.resource)
        return [other for other in waiting if (other.process, other.mode) == key]

    def _grant_of(self, held: Held | sync.Held) -> tuple[Grant, int, bool] | None:
        for record, now in self.run.server.held(held.resource).values():
            for grant in record.grants:
                if grant.holder == held.holder:
                    return grant, now, record.pushed
        return None

    # What the store has

    def _look(self) -> None:
        run = self.run
        if run.finished() or run.world.over:
            return
        now = run.world.now
        seen: set[object] = set()
        for wrong, patience in self._wrong():
            seen.add(wrong)
            if now - self._since.setdefault(wrong, now) > patience:
                self._since[wrong] = math.inf  # it is told once
                self._fail(f"{wrong} for {patience} s", now)
        self._since = {w: since for w, since in self._since.items() if w in seen}
        passed, self._passed = self._passed, []
        for time, other, text in passed:
            if not other.waits or other not in self.attempts:
                continue  # it entered with the other, or left before that
            if now - time > MESSAGE_SECONDS:
                where = f"{other.task}, which waits for {other.resource}"
                self._fail(f"{text} has passed {where} ({other.mode})", time)
            else:
                self._passed.append((time, other, text))
        run.world.after(self.patience.look, self._look)

    def _wrong(self) -> Iterator[tuple[str, float]]:
        """Yield what is wrong in the store now, and for how long it may be."""
        for resource, (record, now) in self.run.server.held().items():
            yield from self._wrong_with_grants(resource.label, record, now)
            yield from self._wrong_with_the_queue(resource.label, record, now)

    def _wrong_with_grants(
        self, name: str, record: Doorman, now: int
    ) -> Iterator[tuple[str, float]]:
        killed = self._killed
        here = [one for one in self.attempts if one.resource == name]
        for grant in record.grants:
            task = grant.who.task
            if grant.dead(now) or task.partition(".")[0] in killed:
                continue
            if not any(one.task == task for one in here):
                yield (
                    f"{task} has left {name} held ({grant.fence})",
                    self.patience.leaves,
                )
            elif _is_short(grant, record, here, now):
                yield f"{task} renews {name} too late", 0.0
        if record.upgrader and not killed and not any(one.moves for one in here):
            yield f"an upgrade of {name} is pending", self.patience.leaves

    def _wrong_with_the_queue(
        self, name: str, record: Doorman, now: int
    ) -> Iterator[tuple[str, float]]:
        clients = self.run.server.processes_of_clients()
        waiting = [
            entry
            for entry in record.queue
            if entry.expires > now and not clients[entry.client_id].dead
        ]
        for entry in waiting:
            process = clients[entry.client_id]
            here = (one for one in self._waiting(name) if one.process is process)
            if next(here, None) is None:
                text = f"{process.name} has an entry at {name} ({entry.number})"
                yield text, self.patience.leaves
        patience = self.patience.enters
        if patience is not None and self._killed:
            patience = self.patience.after_kills
        if patience is not None and _is_free(record, waiting, now):
            yield f"{name} is free, and waited for ({record.last})", patience

    @property
    def _killed(self) -> set[str]:
        return {one.name for one in self.run.processes if one.dead}

    def _fail(self, text: str, time: float) -> None:
        self.run.world.fail(f"{text} at {time - BEGIN:.6f}")


def _is_short(grant: Grant, record: Doorman, here: list[Attempt], now: int) -> bool:
    if record.pushed or grant.expires is None:
        return False
    left = (grant.expires - now) / MICROS
    inside = (one for one in here if one.task == grant.who.task and not one.waits)
    return any(left < LEFT_OF_A_LEASE * one.terms.lease for one in inside)


def _is_free(record: Doorman, waiting: list[QueueEntry], now: int) -> bool:
    live = [grant for grant in record.grants if not grant.dead(now)]
    if not waiting or record.upgrader is not None:
        return False
    if waiting[0].mode is Mode.PERMIT:
        return len(live) < min(entry.limit for entry in waiting)
    if not live:
        return True
    # A writer that waits keeps readers out, also after its process was killed.
    modes = [*(grant.mode for grant in live), *(entry.mode for entry in record.queue)]
    return all(mode is Mode.READ for mode in modes)
