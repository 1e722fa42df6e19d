"""A process whose tasks use locks in every way, while its store is recorded.

``python -m tests.traces.worker URL DIR NAME PLAN``, the plan as JSON (``Plan``). Writes
its journal to ``DIR/NAME.journal``, and its client id to ``DIR/NAME.client``. Ends when
each task has had its turns.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as with_fields
from pathlib import Path

import anyio

from aiorwlock_remote import (
    AcquireUncertain,
    BackendError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    connect,
)
from aiorwlock_remote.core.commands import Command
from aiorwlock_remote.errors import UpgradeConflict
from aiorwlock_remote.locks.lock import AnyLock, OptionArgs, Semaphore, WriterLock
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback
from aiorwlock_remote.testing.conformance.harness import StoreLocation, open_location
from aiorwlock_remote.testing.faults import Fate, FaultyLink, FaultyStore
from tests.traces.faults import PLANTED
from tests.traces.history import Journal
from tests.traces.redis import recorded_scripts
from tests.traces.sqlite import recorded_steps
from tests.traces.swaps import recorded_swaps

EXPECTED = (
    LockTimeout,
    LockLost,
    NotOwner,
    UpgradeConflict,
    BackendError,
    AcquireUncertain,
)
PERMITS = 2
STARTS_WITHIN = 60.0


@dataclass
class Plan:
    """What a worker does. Seconds.

    Attributes:
        seed: Names the resources of a run, which no other run of the store uses.
        turns: How many turns each task has.
        names: Number of resources of each kind.
        kinds: Kinds of locks, chosen with equal weight.
        shares_entries: Whether tasks of one process wait for one resource together.
        pushes: Whether the store may grant by a message.
        lost: The share of replies that do not reach the process.
        fault: Name of the fault that is planted into the core; empty: none is.
    """

    seed: int = 0
    tasks: int = 4
    turns: int = 20
    names: int = 2
    kinds: tuple[str, ...] = ("mutex", "reader", "writer", "semaphore")
    leases: tuple[float, ...] = (0.25, 0.5, 2.0)
    body: float = 0.02
    shares_entries: bool = True
    pushes: bool = True
    lost: float = 0.02
    fault: str = ""
    loop: str = "asyncio"


class RecordedBackend:
    """Opens the store of a URL behind a link that loses some replies."""

    def __init__(self, url: str, plan: Plan, chance: random.Random) -> None:
        self.client_id: str = ""
        self._url = url
        self._plan = plan
        self._chance = chance

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> FaultyStore:
        self.client_id = settings.client_id
        link = FaultyLink(fate=self._fate)
        heard, location = link.hearing(wake), StoreLocation(self._url)
        inner = await open_location(location, loop, heard, settings)
        poll_policy = (
            inner.poll_policy
            if self._plan.pushes
            else with_fields(inner.poll_policy, pushes=False)
        )
        return FaultyStore(inner, link, loop, wake, poll_policy)

    def _fate(self, command: Command) -> Fate:
        del command
        if self._chance.random() >= self._plan.lost:
            return Fate.PASS
        return self._chance.choice([Fate.LOSE, Fate.REFUSE])


class Worker:
    """The tasks of one process."""

    def __init__(self, locks: Locks, plan: Plan, chance: random.Random) -> None:
        self._locks = locks
        self._plan = plan
        self._chance = chance
        self._waiting: set[str] = set()

    async def task(self) -> None:
        for _ in range(self._plan.turns):
            lock = self._lock()
            if not self._plan.shares_entries:
                if lock.resource in self._waiting:
                    await anyio.sleep(self._chance.uniform(0, self._plan.body))
                    continue
                self._waiting.add(lock.resource)
            try:
                await self._turn(lock)
            except EXPECTED:
                await anyio.sleep(self._chance.uniform(0, self._plan.body))
            finally:
                self._waiting.discard(lock.resource)

    def _lock(self) -> AnyLock | Semaphore:
        chance, plan = self._chance, self._plan
        kind, number = chance.choice(plan.kinds), chance.randint(1, plan.names)
        options: OptionArgs = {"lease": chance.choice(plan.leases), "on_lost": "flag"}
        if chance.random() < 0.05 and plan.shares_entries:
            options["lock_delay"] = 0.1
        if kind == "mutex":
            return self._locks.mutex(f"mutex{plan.seed}", number, **options)
        if kind == "semaphore":
            options.pop("lock_delay", None)
            return self._locks.semaphore(
                f"permits{plan.seed}", number, PERMITS, **options
            )
        both = self._locks.rwlock(f"both{plan.seed}", number, **options)
        return both.reader if kind == "reader" else both.writer

    async def _turn(self, lock: AnyLock | Semaphore) -> None:
        chance, body = self._chance, self._plan.body
        kind = chance.choice(["try", "wait", "wait", "wait briefly", "cancelled"])
        if kind == "try":
            held = await lock.try_acquire()
            if held is not None:
                await self._use(lock, held)
        elif kind == "cancelled":
            with anyio.move_on_after(chance.uniform(0, 2 * body)):
                await self._use(lock, await lock.acquire(timeout=2))
        else:
            timeout = chance.uniform(0.001, 3 * body) if kind == "wait briefly" else 2
            await self._use(lock, await lock.acquire(timeout=timeout))

    async def _use(self, lock: AnyLock | Semaphore, held: Held) -> None:
        chance = self._chance
        newest = [held]
        try:
            await anyio.sleep(chance.uniform(0, self._plan.body))
            for _ in range(chance.choice([0, 0, 0, 1, 2])):
                newest[0] = await self._change(lock, newest[0])
                await anyio.sleep(chance.uniform(0, self._plan.body))
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await newest[0].release()

    async def _change(self, lock: AnyLock | Semaphore, held: Held) -> Held:
        chance = self._chance
        kind = chance.choice(["extend", "move", "move", "hand", "force"])
        if kind == "extend":
            await held.extend()
        elif kind == "hand":
            ticket = held.detach()
            # Some come too late for a short lease.
            await anyio.sleep(chance.choice([0, 0, 0.3]))
            return await self._locks.adopt(ticket)
        elif kind == "force" and chance.random() < 0.3:
            await self._locks.force_release(await lock.info(), reason="recorded")
        elif kind == "move" and isinstance(lock, WriterLock) and held.mode == "write":
            return await held.downgrade()
        elif kind == "move" and held.mode == "read":
            return await held.upgrade(chance.choice([0.0, 0.05, 1.0]))
        return held


@contextmanager
def recorded(url: str, journal: Journal, fault: str) -> Iterator[None]:
    """Record the store of this URL, with the fault planted into its rules, if any."""
    scheme = url.partition(":")[0]
    if scheme == "redis":
        with recorded_scripts(journal, fault):
            yield
        return
    record = recorded_steps if scheme == "sqlite" else recorded_swaps
    with PLANTED[fault]() if fault else nullcontext(), record(journal):
        yield


async def main(url: str, folder: Path, name: str, plan: Plan) -> None:
    """Run the tasks."""
    logging.getLogger("aiorwlock_remote").setLevel(logging.CRITICAL)
    chance = random.Random(f"{plan.seed} {name}")
    backend = RecordedBackend(url, plan, chance)
    journal = Journal(folder / f"{name}.journal", name)
    with closing(journal), recorded(url, journal, plan.fault):
        async with connect(backend, connect_timeout=STARTS_WITHIN) as locks:
            (folder / f"{name}.client").write_text(backend.client_id, "utf-8")
            worker = Worker(locks, plan, chance)
            async with anyio.create_task_group() as group:
                print("ready", flush=True)
                for _ in range(plan.tasks):
                    group.start_soon(worker.task)


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[4]))
    anyio.run(
        main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], plan, backend=plan.loop
    )
