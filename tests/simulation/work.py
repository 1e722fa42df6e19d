"""What each process of a run does: it takes locks, uses them, moves and leaves them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from aiorwlock_remote import (
    BackendError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    connect,
    sync,
)
from aiorwlock_remote.errors import AcquireUncertain, Closed, UpgradeConflict
from aiorwlock_remote.locks.connect import open_in
from aiorwlock_remote.locks.lock import AnyLock, Semaphore
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.simulation.bounds import Attempt, Terms
from tests.simulation.world import SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

PERMITS = 2
AnyHeld = Held | sync.Held


@dataclass
class Plan:
    """What a seed wants: drawn before the run, so that a fault does not change it."""

    processes: int
    tasks: int
    rounds: int
    leases: list[float]
    kinds: list[str]
    calm: bool
    """Nothing fails: then no grant may be lost, and no request fail."""
    cancels: bool
    """Tasks are cancelled, though nothing fails."""
    kills: bool
    """Processes are killed, though nothing else fails."""

    @classmethod
    def of(cls, random: Random) -> Plan:
        kinds = random.choice(
            [["mutex"], ["mutex", "rwlock"], ["rwlock"], ["semaphore", "rwlock"]]
        )
        processes, tasks = random.randint(2, 4), random.randint(1, 3)
        rounds = random.randint(3, 6)
        leases = random.choice([[1.0], [1.0], [1.0, 3.0], [1.0, 30.0], [30.0]])
        chance = random.random()
        return cls(
            *(processes, tasks, rounds, leases, kinds),
            calm=chance < 0.5,
            cancels=0.2 <= chance < 0.4,
            kills=0.4 <= chance < 0.5,
        )


@dataclass(eq=False)
class Working:
    """One process at work: several tasks, each with some locks to take."""

    run: Run
    process: SimulatedProcess
    tasks: list[asyncio.Task[Any]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        random = self.run.world.random
        self.stays = random.random() < 0.7
        early = random.random() < 0.15
        self.closes_after = random.uniform(0.1, 6.0) if early else None
        self.closing = False

    def begin(self) -> None:
        self._task = self.process.start(self._work(), f"{self.process.name} main")

    async def _work(self) -> None:
        run, plan = self.run, self.run.plan
        locks = await self._connect()
        async with locks:
            names = [f"{self.process.name}.{n}" for n in range(plan.tasks)]
            self.tasks = [
                asyncio.create_task(self._one_task(locks, name), name=name)
                for name in names
            ]
            await asyncio.wait(self.tasks, timeout=self.closes_after)
            self.closing = not all(task.done() for task in self.tasks)
            if self.closing:
                run.world.tell(f"{self.process.name} closes its locks")
                await locks.aclose()
                self._note_trouble()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            for task in self.tasks:
                if not task.cancelled() and task.exception() is not None:
                    run.world.fail(f"{task.get_name()}: {task.exception()!r}")
            if self.stays:
                # Who stays until all is well has to leave nothing behind.
                await asyncio.sleep(run.until_calm(self.process))
                if not self.closing:
                    last = [
                        asyncio.create_task(self._last_cycle(locks, name), name=name)
                        for name in names
                    ]
                    await asyncio.gather(*last)
        self._ends()

    def _ends(self) -> None:
        self._tell(f"{self.process.name} ends")
        self._note_trouble()
        self.run.working.discard(self)

    def _note_trouble(self) -> None:
        if self.run.may_fail(self.process):
            self.run.server.ends_in_trouble(self.process)

    def cancel_one(self, random: Random) -> None:
        tasks = [task for task in self.tasks if not task.done()]
        if tasks:
            task = random.choice(tasks)
            self._tell(f"{task.get_name()} is cancelled")
            task.cancel()

    async def _connect(self) -> Locks:
        backend = self.run.server.backend(self.process)
        while True:
            try:
                loop = current_event_loop(self.process.clock)
                return await open_in(loop, connect(backend))
            except BackendError:
                await asyncio.sleep(0.1)

    async def _one_task(self, locks: Locks, name: str) -> None:
        random = Random(f"{self.run.seed} {name}")
        for _ in range(self.run.plan.rounds):
            try:
                if random.random() < 0.1:
                    await self._both(locks, name, random)
                else:
                    await self._one_cycle(locks, name, random)
            except Closed:
                if not self.closing:
                    raise
                return
            except asyncio.CancelledError:
                # A handler that was cancelled; the next request comes.
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
                self._tell(f"{name} was cancelled")
            await asyncio.sleep(random.expovariate(10.0))

    async def _one_cycle(self, locks: Locks, name: str, random: Random) -> None:
        lock, terms = self._lock(locks, random)
        timeout = random.choice([None, None, 0.0, 0.3, 2.0])
        self._tell(f"{name} asks for {lock.resource} ({lock.mode}, {timeout})")
        with self._outcome(name), self._attempt(lock, name, terms, timeout) as attempt:
            async with lock.acquire(timeout) as held:
                await self._inside(held, attempt, random)

    async def _last_cycle(self, locks: Locks, name: str) -> None:
        # Everything works again: a short lease is renewed, and nobody fails.
        random = Random(f"{self.run.seed} {name} last")
        lock, terms = self._lock(locks, random, lease=1.0)
        self._tell(f"{name} asks for {lock.resource} for the last time")
        with self._outcome(name), self._attempt(lock, name, terms) as attempt:
            async with lock.acquire() as held:
                self._enters(held, attempt)
                await asyncio.sleep(1.5)
                self._touch(held, attempt)

    async def _both(self, locks: Locks, name: str, random: Random) -> None:
        lease = random.choice(self.run.plan.leases)
        one = locks.mutex("a", 1, lease=lease)
        other = locks.rwlock("b", 1, lease=lease).writer
        timeout = random.choice([None, 0.0, 1.0])
        self._tell(f"{name} asks for both ({timeout})")
        with (
            self._outcome(name),
            self._attempt(one, name, Terms(lease), 0.0) as first,
            self._attempt(other, name, Terms(lease), 0.0) as second,
        ):
            async with locks.multi(one, other, timeout=timeout) as held:
                for each in held:
                    each.check()
                for each, attempt in zip(held, (first, second), strict=True):
                    self._enters(each, attempt)
                await self._pass_time(random)
                for each, attempt in zip(held, (first, second), strict=True):
                    self._touch(each, attempt)

    @contextmanager
    def _outcome(self, name: str) -> Iterator[None]:
        run, may_fail = self.run, self.run.may_fail(self.process)
        try:
            yield
        except (LockTimeout, UpgradeConflict) as exc:
            self._tell(f"{name}: {type(exc).__name__}")
        except (LockLost, NotOwner, BackendError, AcquireUncertain) as exc:
            self._tell(f"{name}: {type(exc).__name__}: {exc}")
            if not may_fail:
                run.world.fail(f"{name}: nothing failed, but {exc!r}")
        else:
            self._tell(f"{name} has left")
            run.cycles += 1

    def _lock(
        self, locks: Locks, random: Random, lease: float | None = None
    ) -> tuple[AnyLock | Semaphore, Terms]:
        kind = random.choice(self.run.plan.kinds)
        lease = lease or random.choice(self.run.plan.leases)
        if kind == "mutex":
            return locks.mutex("a", 1, lease=lease), Terms(lease)
        if kind == "semaphore":
            permits = locks.semaphore("s", 1, PERMITS, lease=lease)
            return permits, Terms(lease, PERMITS)
        lock = locks.rwlock("b", 1, lease=lease)
        return (lock.writer if random.random() < 0.4 else lock.reader), Terms(lease)

    def _attempt(
        self,
        lock: AnyLock | Semaphore,
        name: str,
        terms: Terms,
        timeout: float | None = None,
    ) -> AbstractContextManager[Attempt]:
        return self.run.bounds.attempt(
            *(self.process, name, lock.resource, lock.mode, terms),
            queues=timeout != 0.0,
        )

    async def _inside(self, held: Held, attempt: Attempt, random: Random) -> None:
        self._enters(held, attempt)
        for _ in range(random.randint(0, 4)):
            await self._pass_time(random)
            self._touch(held, attempt)
            if random.random() < 0.1:
                await held.extend()
                self._touch(held, attempt)
        if held.mode != "permit" and random.random() < 0.15:
            try:
                with self.run.bounds.moving(attempt):
                    reads = held.mode == "read"
                    moved = await (held.upgrade(1.0) if reads else held.downgrade())
            except LockTimeout:
                self._touch(held, attempt)  # it reads on
                await self._pass_time(random)
                self._touch(held, attempt)
                raise
            self._enters(moved, attempt)
            await self._pass_time(random)
            self._touch(moved, attempt)

    def _enters(self, held: AnyHeld, attempt: Attempt) -> None:
        held.check()
        name, limit = attempt.task, attempt.terms.limit
        self._tell(f"{name} has {held.resource} ({held.mode}), fence {held.fence}")
        attempt.visit = self.run.judge.enters(held, name, self.process.time, limit)
        self.run.bounds.enters(held, attempt)

    def _touch(self, held: AnyHeld, attempt: Attempt) -> None:
        held.check()
        assert attempt.visit is not None
        self.run.judge.touches(attempt.visit, self.process.time)
        self.run.bounds.believes(held, attempt)

    async def _pass_time(self, random: Random) -> None:
        seconds = random.choice([0.0, 0.005, 0.05, 0.5, 1.2])
        if self.run.faulty and random.random() < 0.02:
            self._tell("the loop is blocked")
            self.process.loop.block(random.uniform(0.1, 2.5))
        await asyncio.sleep(seconds)

    def _tell(self, text: str) -> None:
        self.run.world.tell(text)
