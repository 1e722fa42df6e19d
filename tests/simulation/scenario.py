"""One run: processes that lock and work, faults, healing, and what must hold then."""

from __future__ import annotations

import asyncio
import logging
import os
import random as random_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import MethodType
from typing import cast
from unittest.mock import patch

from aiorwlock_remote._util import callback_thread
from aiorwlock_remote.runtime import lease_keeper, store_client
from tests.simulation.bounds import Bounds
from tests.simulation.judge import Judge
from tests.simulation.redis import REDIS_KINDS
from tests.simulation.store import SimulatedServer
from tests.simulation.tables import TableServer
from tests.simulation.threads import ThreadsWorking, simulated_background
from tests.simulation.work import Plan, Working
from tests.simulation.world import (
    BEGIN,
    SimulatedCondition,
    SimulatedProcess,
    SimulatedQueue,
    SimulatedThread,
    World,
)

KINDS = "core", "sync", "tables", *REDIS_KINDS
SPEED_ERRORS = {"tables": 0.0002}
"""Of kinds of stores that allow for less than others."""
SPEED_ERROR = 0.002
"""By how much a clock is too fast or slow; each kind of store allows for more."""
FAULTY_SECONDS = 12.0
CALM_SECONDS = 6.0
"""In which tasks are cancelled, and processes killed, while nothing else happens."""
HEALING_SECONDS = 90.0
FORWARD_RATE = 0.15
"""Part of the runs with faults in which the server's clock is set forward."""


@dataclass
class Run:
    """The processes of one seed, and what they did."""

    seed: int
    kind: str = "core"
    """Of the server: ``core`` runs the steps, ``tables`` compares and sets."""
    world: World = field(init=False)
    judge: Judge = field(default_factory=Judge)
    bounds: Bounds = field(init=False)
    cycles: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.plan = Plan.of(self.world.random)
        if self.kind == "failovers":
            # Enough work for all of the time in which there are two primaries.
            self.plan.rounds *= 3
        self.error = SPEED_ERRORS.get(self.kind, SPEED_ERROR)
        if self.kind in REDIS_KINDS:
            self.server: SimulatedServer = REDIS_KINDS[self.kind](self.world)
        elif self.kind == "tables":
            self.server = TableServer(self.world)
        else:
            self.server = SimulatedServer(self.world, self._speed())
        self.bounds = Bounds(self)
        self.processes: list[SimulatedProcess] = []
        self.working: set[Working] = set()
        self.faulty = not self.plan.calm
        self._calm_from = 0.0 if self.plan.calm else float("inf")
        self._names = 0

    def start(self) -> None:
        self.bounds.begin()
        for _ in range(self.plan.processes):
            self.start_process()

    def start_process(self) -> None:
        self._names += 1
        name = f"p{self._names}"
        process = SimulatedProcess(self.world, name, self._speed())
        self.processes.append(process)
        kind = ThreadsWorking if self.kind == "sync" else Working
        working = kind(self, process)
        self.working.add(working)
        process.interrupt = partial(working.cancel_one, self.world.random)
        working.begin()

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


class Faults:
    """Faults at random times, until they are healed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = Random(f"{run.seed} faults")

    def begin(self) -> None:
        run, random = self._run, self._random
        if run.plan.calm:
            # An interrupted thread drops its grant, which the collector finds.
            if run.plan.cancels and run.kind != "sync":
                run.world.interrupt_rate = random.choice([0.0, 0.05, 0.2])
                self._at_times(self._cancel, random.randint(1, 6))
            if run.plan.kills:
                self._at_times(self._kill, random.randint(1, 3))
            return
        network = run.server.network
        network.slow = random.choice([0.0, 0.02, 0.2])
        network.message_lost = random.choice([0.0, 0.05, 0.5])
        network.message_doubled = random.choice([0.0, 0.1])
        network.message_late = random.choice([0.0, 0.1])
        network.message_forged = random.choice([0.0, 0.05])
        run.world.stall_rate = random.choice([0.0, 0.0005, 0.003])
        run.world.interrupt_rate = random.choice([0.0, 0.05, 0.2])
        faults: list[Callable[[], object]] = [
            *run.server.faults(random),
            *(self._cancel, self._cancel, self._freeze, self._kill, self._hang),
            partial(run.server.part, random),
        ]
        for _ in range(random.randint(1, 12)):
            strike = partial(self._strike, random.choice(faults))
            run.world.after(random.uniform(0.0, FAULTY_SECONDS), strike)
        network.cut = random.choice([0.0, 0.01, 0.05])
        # Seldom: for some time after it, only fences are judged.
        seldom = Random(f"{run.seed} clock set forward")
        if run.kind in ("core", "sync") and seldom.random() < FORWARD_RATE:
            strike = partial(self._strike, partial(run.server.set_forward, seldom))
            run.world.after(seldom.uniform(0.0, FAULTY_SECONDS), strike)

    def heal(self) -> None:
        self._run.heal()

    def _at_times(self, fault: Callable[[], object], count: int) -> None:
        for _ in range(count):
            self._run.world.after(self._random.uniform(0.0, CALM_SECONDS), fault)

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

    def start_thread(function: Callable[[], object], name: str) -> SimulatedThread:
        return SimulatedThread(world.running_process(), function, name)

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
            simulated_background(world),
            patch.object(lease_keeper, "Condition", SimulatedCondition),
            patch.object(lease_keeper, "SimpleQueue", SimulatedQueue),
            patch.object(callback_thread, "SimpleQueue", SimulatedQueue),
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
        faults.begin()
        if not run.plan.calm:
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
