"""All that is measured, one after the other."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import anyio

from aiorwlock_remote.cli.bench.partner import Go, Plan
from aiorwlock_remote.cli.bench.turns import handed_over, take_turns
from aiorwlock_remote.cli.bench_stats import Measured, quantile
from aiorwlock_remote.cli.worker_process import Helper, within

if TYPE_CHECKING:
    from aiorwlock_remote import Locks

TYPE = "rwlock-bench"
PARTNER = "the other process"
MODULE = "aiorwlock_remote.cli.bench.partner"
PARTS = 6
LEASE = 10.0
START, ANSWER, LEAVE = 30.0, 30.0, 5.0
"""Seconds that the other process may take to start, to answer when its time is over,
and to leave a bench that is interrupted."""
SHORTEST_HOLD, REQUESTS_A_HOLD = 0.005, 2

Act = Callable[[], Awaitable[object]]


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. ``seconds``: for all of it."""

    url: str
    tasks: int
    seconds: float
    loop: str

    @property
    def part(self) -> float:
        """Seconds for each of the things that are measured."""
        return self.seconds / PARTS


@final
class Course:
    """What is measured through one ``Locks``, and another process.

    All names are new ones, of a type of their own. ``killed``: the other process did
    not leave in time.
    """

    def __init__(self, settings: Settings, locks: Locks, folder: Path) -> None:
        """``folder``: for what the other process writes to stderr."""
        self.killed: bool = False
        self._settings = settings
        self._locks = locks
        self._folder = folder
        self._run = secrets.token_hex(8)

    async def run(self) -> list[Measured]:
        """All of it; the plain request first."""
        lock = self._locks.mutex(*self._name("alone"))
        async with lock:  # what a store does once is done
            pass
        request = await self._request()
        processes = await self._processes(quantile(request.times, 0.5))
        return [
            request,
            await self._alone(),
            await self._apart(),
            await self._turns(),
            processes,
            await self._readers(),
        ]

    async def _request(self) -> Measured:
        lock = self._locks.mutex(*self._name("free"))
        return await self._repeat("request", "ask whether a lock is held", lock.locked)

    async def _alone(self) -> Measured:
        text = "take and give back a mutex, one task"
        return await self._repeat("alone", text, self._mutex("alone"))

    async def _apart(self) -> Measured:
        count = self._settings.tasks
        acts = [self._mutex(f"apart-{number}") for number in range(count)]
        text = f"the same, {count} tasks, each its own mutex"
        return await self._repeat("apart", text, *acts)

    async def _turns(self) -> Measured:
        """From the leaving of one task to the entering of the next."""
        count = max(2, self._settings.tasks)
        lock = self._locks.mutex(*self._name("turns"))
        times: list[float] = []
        left: float | None = None

        async def turn() -> None:
            nonlocal left
            async with lock:
                entered = time.perf_counter()
                if left is not None:
                    times.append(entered - left)
                left = time.perf_counter()

        text = f"hand over a mutex, {count} tasks in turn"
        repeated = await self._repeat("turns", text, *[turn] * count)
        return Measured("turns", text, times, repeated.took)

    async def _processes(self, request: float) -> Measured:
        """From the leaving of one process to the entering of the other."""
        name, part = self._name("processes"), self._settings.part
        go = Go(max(SHORTEST_HOLD, request * REQUESTS_A_HOLD), part)
        plan = Plan(self._settings.url, name, LEASE, self._settings.loop)
        with within(START, PARTNER, "start"):
            helper = await self._start(plan)
        try:
            with within(START, PARTNER, "start"):
                await helper.ready()
            await helper.say(go.line())
            ours = await take_turns(self._locks.mutex(*name), go.hold, go.seconds)
            with within(ANSWER, PARTNER, "answer"):
                theirs = json.loads(await helper.line())
        finally:
            await self._end(helper)
        times = handed_over(ours, [(entered, left) for entered, left in theirs])
        return Measured("processes", "hand over a mutex, 2 processes", times, None)

    async def _readers(self) -> Measured:
        count = self._settings.tasks
        reader = self._locks.rwlock(*self._name("readers")).reader

        async def read() -> None:
            async with reader:
                pass

        text = f"enter and leave as a reader, {count} tasks, one lock"
        return await self._repeat("readers", text, *[read] * count)

    def _mutex(self, name: str) -> Act:
        lock = self._locks.mutex(*self._name(name))

        async def turn() -> None:
            async with lock:
                pass

        return turn

    def _name(self, name: str) -> tuple[str, str]:
        return TYPE, f"{self._run}-{name}"

    async def _repeat(self, name: str, text: str, *acts: Act) -> Measured:
        times, took = await repeat(acts, self._settings.part)
        return Measured(name, text, times, took)

    async def _start(self, plan: Plan) -> Helper:
        line = json.dumps(asdict(plan))
        errors = self._folder / "partner.err"
        return await Helper.start(PARTNER, MODULE, line, errors)

    async def _end(self, helper: Helper) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(LEAVE):
                await helper.dismiss()
                await helper.left()
            self.killed = helper.runs
            await helper.aclose()


async def repeat(acts: Sequence[Act], seconds: float) -> tuple[list[float], float]:
    """Each in a task of its own, again and again; once at least.

    How long each time took, and all of it.
    """
    times: list[float] = []
    began = time.perf_counter()

    async def one(act: Act) -> None:
        before, first = time.perf_counter(), True
        while first or before < began + seconds:
            await act()
            after = time.perf_counter()
            times.append(after - before)
            before, first = after, False

    async with anyio.create_task_group() as group:
        for act in acts:
            group.start_soon(one, act)
    return times, time.perf_counter() - began
