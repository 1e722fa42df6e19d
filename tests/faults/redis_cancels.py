"""The probe of cancellation on Redis: ``python -m tests.faults.redis_cancels [N]``.

Tasks of three ``Locks`` take mutexes and both sides of readers-writer locks, on few
names and on names of their own, behind proxies that delay every piece by up to 5 ms.
They are cancelled N times all in all, at a random moment of acquire, hold or release:
by a scope, by ``Task.cancel()`` once or twice, by a timeout. Round by round, plain
redis-py then looks at what is left.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.ports import Backend
from tests.faults.redis_report import Report
from tests.faults.redis_seats import Plain, client, left
from tests.faults.redis_turns import PATIENCE, AnyLock, Attempt, Inside
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

Opens = Callable[[str], "str | Backend"]

LOCKS = 3
TASKS = 12  # of each Locks
HOT = 3
JITTER = 0.005
ROUND = 250


@dataclass(frozen=True)
class Aim:
    """When to strike: after ``moment`` seconds, or ``late`` ones into the release."""

    moment: float
    late: float | None


class Probe:
    """Cancels attempts until there were enough."""

    def __init__(self, all_locks: Sequence[Locks], seed: int, *, native: bool) -> None:
        """``native``: on asyncio, by what belongs to asyncio as well."""
        self.report = Report()
        self.all_locks = all_locks
        self._random = random.Random(seed)
        self._inside = Inside()
        self._ways: dict[str, Callable[..., Coroutine[Any, Any, bool]]] = {
            "scope": self._by_scope,
            "deadline": self._by_deadline,
        }
        if native:
            self._ways |= {
                "once": partial(self._by_task, times=1),
                "twice": partial(self._by_task, times=2),
                "timeout": self._by_timeout,
            }

    async def run(self, cancels: int, plain: Plain) -> None:
        """In rounds; after each, nothing may be left."""
        while self.report.cancels < cancels:
            goal = min(cancels, self.report.cancels + ROUND)
            async with anyio.create_task_group() as group:
                for locks in self.all_locks:
                    for number in range(TASKS):
                        group.start_soon(self._task, locks, number, goal)
            for locks in self.all_locks:  # what was sent before is carried out then
                for number in range(HOT):
                    await locks.mutex("hot", number).info()
                for number in range(LOCKS * TASKS):
                    await locks.mutex("own", number).info()
            if found := left(plain):
                self.report.left.append(found)
                plain.flushall()
        self.report.overlaps = self._inside.overlaps

    async def _task(self, locks: Locks, number: int, goal: int) -> None:
        while self.report.cancels < goal:
            attempt = Attempt(self._lock(locks, number), self._inside, self._random)
            way = self._random.choice(list(self._ways))
            ended = await self._ways[way](attempt, self._aim())
            self.report.swallowed += not ended
            self.report.phases[attempt.phase] += 1
            self.report.ways[way] += 1

    def _lock(self, locks: Locks, number: int) -> AnyLock:
        index = self.all_locks.index(locks)
        name = ("hot", self._random.randrange(HOT))
        if self._random.random() < 0.4:
            name = ("own", index * TASKS + number)
        rwlock = locks.rwlock(*name)
        either: list[AnyLock] = [locks.mutex(*name), rwlock.reader, rwlock.writer]
        return self._random.choice(either)

    def _aim(self) -> Aim:
        if self._random.random() < 0.5:
            return Aim(100 * JITTER, self._random.uniform(0, 2 * JITTER))
        # Seldom much longer than a turn takes, or nothing would be interrupted.
        return Aim(self._random.expovariate(0.5 / JITTER), None)

    async def _moment(self, attempt: Attempt, aim: Aim) -> None:
        releasing = anyio.Event()
        if aim.late is not None:
            attempt.on_release = releasing.set
        with anyio.move_on_after(aim.moment):
            await releasing.wait()
            await anyio.sleep(aim.late or 0)

    async def _by_scope(self, attempt: Attempt, aim: Aim) -> bool:
        ended = anyio.Event()
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await attempt.run()
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await self._moment(attempt, aim)
            scope.cancel()
            with anyio.move_on_after(PATIENCE) as patience:
                await ended.wait()
        return not patience.cancelled_caught

    async def _by_deadline(self, attempt: Attempt, aim: Aim) -> bool:
        with anyio.move_on_after(aim.moment) as scope:
            if (late := aim.late) is not None:

                def sooner() -> None:
                    scope.deadline = anyio.current_time() + late

                attempt.on_release = sooner
            await attempt.run()
        return scope.cancelled_caught

    async def _by_task(self, attempt: Attempt, aim: Aim, times: int) -> bool:
        task = asyncio.get_running_loop().create_task(attempt.run())
        await self._moment(attempt, aim)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(self._random.uniform(0, 0.002))
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
        if not done:
            task.cancel()
            await asyncio.wait({task})
        return bool(done) and task.cancelled()

    async def _by_timeout(self, attempt: Attempt, aim: Aim) -> bool:
        with anyio.move_on_after(aim.moment + PATIENCE):
            try:
                async with asyncio.timeout(aim.moment) as timeout:
                    if (late := aim.late) is not None:

                        def sooner() -> None:
                            now = asyncio.get_running_loop().time()
                            timeout.reschedule(now + late)

                        attempt.on_release = sooner
                    await attempt.run()
            except TimeoutError:
                return True
        return False


async def probe(
    server: RedisServer,
    cancels: int,
    seed: int,
    *,
    native: bool,
    opens: Opens = str,
) -> Report:
    """Cancel so often. ``opens``: a URL → what ``connect`` is given."""
    plain = client(server.url)
    plain.flushall()
    async with AsyncExitStack() as stack:
        stack.callback(plain.close)
        proxies = [
            stack.enter_context(Proxy(server.port, delay=JITTER, seed=seed + i))
            for i in range(LOCKS)
        ]
        all_locks = [
            await stack.enter_async_context(connect(opens(proxy.url)))
            for proxy in proxies
        ]
        probing = Probe(all_locks, seed, native=native)
        await probing.run(cancels, plain)
        # The lease keeper makes one of its own when a renewal is due, and ends it if no
        # answer comes in time: on a slow machine that happens to a grant by message.
        probing.report.connections = sum(proxy.first_ended for proxy in proxies)
    return probing.report


def main() -> None:
    """Run on every loop and report; exit 1 if anything is wrong."""
    cancels = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = random.randrange(2**32)
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        for loop, options in (
            ("asyncio", {"use_uvloop": False}),
            ("asyncio", {"use_uvloop": True}),
            ("trio", {}),
        ):
            report = anyio.run(
                partial(probe, native=loop == "asyncio"),
                server,
                cancels,
                seed,
                backend=loop,
                backend_options=options,
            )
            name = "uvloop" if options.get("use_uvloop") else loop
            print(
                f"{name}, seed {seed}: {report.cancels} cancels "
                f"({_listed(report.phases)}; {_listed(report.ways)}), "
                f"{len(report.faults())} faults"
            )
            for fault in report.faults():
                print(f"  {fault}")
                wrong = True
        server.close()
    sys.exit(wrong)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    main()
