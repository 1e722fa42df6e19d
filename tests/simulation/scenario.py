"""One run: processes that lock and work, faults, healing, and what must hold then."""

from __future__ import annotations

import asyncio
import logging
import os
import random as random_module
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MethodType
from typing import Any, cast
from unittest.mock import patch

from aiorwlock_remote import (
    BackendError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    connect,
)
from aiorwlock_remote.cas import renewer
from aiorwlock_remote.errors import AcquireUncertain, Closed, UpgradeConflict
from aiorwlock_remote.locks.connect import open_in
from aiorwlock_remote.locks.lock import AnyLock, Semaphore
from aiorwlock_remote.runtime import lease_keeper, store_client
from aiorwlock_remote.runtime.event_loop import current_event_loop
from tests.simulation.judge import Judge, Visit
from tests.simulation.redis import REDIS_KINDS
from tests.simulation.store import SimulatedServer
from tests.simulation.tables import TableServer
from tests.simulation.world import (
    BEGIN,
    SimulatedCondition,
    SimulatedProcess,
    SimulatedQueue,
    SimulatedThread,
    World,
)

KINDS = "core", "tables", *REDIS_KINDS
SPEED_ERRORS = {"tables": 0.0002}
"""Of kinds of stores that allow for less than others."""
SPEED_ERROR = 0.002
"""By how much a clock is too fast or slow; each kind of store allows for more."""
FAULTY_SECONDS = 12.0
HEALING_SECONDS = 60.0
PERMITS = 2


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

    @classmethod
    def of(cls, random: Random) -> Plan:
        kinds = random.choice(
            [["mutex"], ["mutex", "rwlock"], ["rwlock"], ["semaphore", "rwlock"]]
        )
        return cls(
            processes=random.randint(2, 4),
            tasks=random.randint(1, 3),
            rounds=random.randint(3, 6),
            leases=random.choice([[1.0], [3.0], [1.0, 30.0], [30.0]]),
            kinds=kinds,
            calm=random.random() < 0.2,
        )


@dataclass
class Run:
    """The processes of one seed, and what they did."""

    seed: int
    kind: str = "core"
    """Of the server: ``core`` runs the steps, ``tables`` compares and sets."""
    world: World = field(init=False)
    judge: Judge = field(default_factory=Judge)
    cycles: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.plan = Plan.of(self.world.random)
        self.error = SPEED_ERRORS.get(self.kind, SPEED_ERROR)
        if self.kind in REDIS_KINDS:
            self.server: SimulatedServer = REDIS_KINDS[self.kind](self.world)
        elif self.kind == "tables":
            self.server = TableServer(self.world)
        else:
            self.server = SimulatedServer(self.world, self._speed())
        self.processes: list[SimulatedProcess] = []
        self.working: set[Working] = set()
        self.faulty = not self.plan.calm
        self._calm_from = 0.0 if self.plan.calm else float("inf")
        self._names = 0

    def start(self) -> None:
        for _ in range(self.plan.processes):
            self.start_process()

    def start_process(self) -> None:
        self._names += 1
        name = f"p{self._names}"
        process = SimulatedProcess(self.world, name, self._speed())
        self.processes.append(process)
        working = Working(self, process)
        self.working.add(working)
        process.interrupt = partial(working.cancel_one, self.world.random)
        working.main = process.start(working.work(), f"{name} main")

    def _speed(self) -> float:
        return 1.0 + self.world.random.uniform(-self.error, self.error)

    def heal(self) -> None:
        self.world.tell("everything heals")
        self.faulty = False
        self._calm_from = self.world.now + self.server.settling_seconds
        self.server.heal()
        self.world.stall_rate = self.world.interrupt_rate = 0.0

    def may_fail(self, process: SimulatedProcess) -> bool:
        """Whether a fault may be the cause of what happens to a process now."""
        return process.time < self._calm_from

    def until_calm(self, process: SimulatedProcess) -> float:
        """Return for how many seconds faults may still matter, at most."""
        latest = BEGIN + FAULTY_SECONDS + self.server.settling_seconds
        return 0.0 if self.plan.calm else max(0.0, latest - process.time)

    def finished(self) -> bool:
        return not self.working

    def kill(self, process: SimulatedProcess) -> None:
        self.world.tell(f"{process.name} is killed")
        process.kill()
        self.working = {one for one in self.working if one.process is not process}


@dataclass(eq=False)
class Working:
    """One process at work: several tasks, each with some locks to take."""

    run: Run
    process: SimulatedProcess
    main: asyncio.Task[Any] = field(init=False, repr=False)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        random = self.run.world.random
        self.stays = random.random() < 0.7
        early = random.random() < 0.15
        self.closes_after = random.uniform(0.1, 6.0) if early else None
        self.closing = False

    async def work(self) -> None:
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
        run.world.tell(f"{self.process.name} ends")
        self._note_trouble()
        run.working.discard(self)

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
        lock, limit = self._lock(locks, random)
        timeout = random.choice([None, None, 0.0, 0.3, 2.0])
        self._tell(f"{name} asks for {lock.resource} ({lock.mode}, {timeout})")
        with self._outcome(name):
            async with lock.acquire(timeout) as held:
                await self._inside(held, name, random, limit)

    async def _both(self, locks: Locks, name: str, random: Random) -> None:
        lease = random.choice(self.run.plan.leases)
        wanted = locks.mutex("a", 1, lease=lease), locks.rwlock("b", 1, lease=lease)
        timeout = random.choice([None, 0.0, 1.0])
        self._tell(f"{name} asks for both ({timeout})")
        with self._outcome(name):
            async with locks.multi(
                wanted[0], wanted[1].writer, timeout=timeout
            ) as held:
                for one in held:
                    one.check()
                visits = [self._enters(one, name) for one in held]
                await self._pass_time(random)
                for one, visit in zip(held, visits, strict=True):
                    self._touch(one, visit)

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

    def _lock(self, locks: Locks, random: Random) -> tuple[AnyLock | Semaphore, int]:
        kind = random.choice(self.run.plan.kinds)
        lease = random.choice(self.run.plan.leases)
        if kind == "mutex":
            return locks.mutex("a", 1, lease=lease), 1
        if kind == "semaphore":
            return locks.semaphore("s", 1, PERMITS, lease=lease), PERMITS
        lock = locks.rwlock("b", 1, lease=lease)
        return (lock.writer if random.random() < 0.4 else lock.reader), 1

    async def _inside(self, held: Held, name: str, random: Random, limit: int) -> None:
        visit = self._enters(held, name, limit)
        for _ in range(random.randint(0, 4)):
            await self._pass_time(random)
            self._touch(held, visit)
            if random.random() < 0.1:
                await held.extend()
                self._touch(held, visit)
        if held.mode != "permit" and random.random() < 0.15:
            reads = held.mode == "read"
            moved = await (held.upgrade(1.0) if reads else held.downgrade())
            visit = self._enters(moved, name)
            await self._pass_time(random)
            self._touch(moved, visit)

    def _enters(self, held: Held, name: str, limit: int = 1) -> Visit:
        held.check()
        self._tell(f"{name} has {held.resource} ({held.mode}), fence {held.fence}")
        return self.run.judge.enters(held, name, self.process.time, limit)

    def _touch(self, held: Held, visit: Visit) -> None:
        held.check()
        self.run.judge.touches(visit, self.process.time)

    async def _pass_time(self, random: Random) -> None:
        seconds = random.choice([0.0, 0.005, 0.05, 0.5, 1.2])
        if self.run.faulty and random.random() < 0.02:
            self._tell("the loop is blocked")
            self.process.loop.block(random.uniform(0.1, 2.5))
        await asyncio.sleep(seconds)

    def _tell(self, text: str) -> None:
        self.run.world.tell(text)


class Faults:
    """Faults at random times, until they are healed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = Random(f"{run.seed} faults")

    def begin(self) -> None:
        run, random = self._run, self._random
        network = run.server.network
        network.slow = random.choice([0.0, 0.02, 0.2])
        network.cut = random.choice([0.0, 0.01, 0.05])
        network.message_lost = random.choice([0.0, 0.05, 0.5])
        network.message_doubled = random.choice([0.0, 0.1])
        network.message_late = random.choice([0.0, 0.1])
        network.message_forged = random.choice([0.0, 0.05])
        run.world.stall_rate = random.choice([0.0, 0.0005, 0.003])
        run.world.interrupt_rate = random.choice([0.0, 0.02, 0.1])
        faults = [
            *run.server.faults(random),
            *(self._cancel, self._cancel, self._freeze, self._kill, self._hang),
        ]
        for _ in range(random.randint(1, 12)):
            strike = partial(self._strike, random.choice(faults))
            run.world.after(random.uniform(0.0, FAULTY_SECONDS), strike)

    def heal(self) -> None:
        self._run.heal()

    def _strike(self, fault: Callable[[], object]) -> None:
        if self._run.faulty:  # it may be over sooner than planned
            fault()

    def _cancel(self) -> None:
        working = self._one()
        if working:
            working.process.in_loop(partial(working.cancel_one, self._random))

    def _freeze(self) -> None:
        working = self._one()
        if working:
            seconds = self._random.choice([0.1, 1.0, 4.0])
            self._run.world.tell(f"{working.process.name} is stopped for {seconds} s")
            working.process.freeze(seconds)

    def _kill(self) -> None:
        working = self._one()
        if working and self._random.random() < 0.5:
            self._run.kill(working.process)
            self._run.start_process()

    def _hang(self) -> None:
        seconds = self._random.choice([0.2, 2.5])
        self._run.world.tell(f"the server hangs for {seconds} s")
        self._run.server.hang(seconds)

    def _one(self) -> Working | None:
        working = sorted(self._run.working, key=lambda one: one.process.name)
        return self._random.choice(working) if working else None


class _LogWatch(logging.Handler):
    """Errors that the library logs are errors of the run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.fail(f"logged: {record.getMessage()} {record.exc_info}")


@contextmanager
def simulated(world: World, server: SimulatedServer) -> Iterator[None]:
    """Context manager: threads, sockets and random numbers are the world's."""

    class Threading:
        Lock = threading.Lock
        Condition = SimulatedCondition

    def start_thread(function: Callable[[], object], name: str) -> SimulatedThread:
        del name
        assert world.current is not None
        return SimulatedThread(world.current, function)

    async def run_blocking(join: MethodType) -> None:
        # The library only joins threads so.
        thread = cast("SimulatedThread", join.__self__)
        process = world.running_process()
        done = process.loop.create_future()
        thread.when_ended(lambda: process.in_loop(lambda: done.set_result(None)))
        await done

    bytes_of = Random(f"{world.seed} bytes").randbytes
    logger = logging.getLogger("aiorwlock_remote")
    handler = _LogWatch(world)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    state = random_module.getstate()
    random_module.seed(world.seed)
    try:
        with (
            server.patches(),
            patch.object(lease_keeper, "threading", Threading),
            patch.object(lease_keeper, "SimpleQueue", SimulatedQueue),
            patch.object(renewer, "SimpleQueue", SimulatedQueue),
            patch.object(lease_keeper, "start_thread", start_thread),
            patch.object(store_client, "run_blocking", run_blocking),
            patch.object(os, "urandom", bytes_of),
            patch.object(random_module, "_urandom", bytes_of),
        ):
            yield
    finally:
        random_module.setstate(state)
        logger.propagate = propagate
        logger.removeHandler(handler)


def simulate(seed: int, kind: str = "core") -> Run:
    """Run one seed to its end; ``world.failures`` of the result says what was wrong."""
    run = Run(seed, kind)
    world = run.world
    with simulated(world, run.server):
        run.start()
        faults = Faults(run)
        if not run.plan.calm:
            faults.begin()
            world.run(world.now + FAULTY_SECONDS, run.finished)
            faults.heal()
        world.run(world.now + HEALING_SECONDS, run.finished)
        if not run.finished():
            names = sorted(one.process.name for one in run.working)
            world.fail(f"no end after everything healed: {', '.join(names)}")
        world.failures += run.judge.violations(run.server.in_doubt)
        world.run(world.now + 1.0)
        run.server.left_behind()
        _end(run)
    return run


def _end(run: Run) -> None:
    """Take the processes down, those that were killed too, so that nothing leaks."""
    run.world.over = True
    run.server.heal()
    run.server.revive()
    for process in run.processes:
        process.revive()
        for task in asyncio.all_tasks(process.loop):
            process.in_loop(task.cancel)
    run.world.run(run.world.now + 10.0)
    for process in run.processes:
        process.loop.close()
