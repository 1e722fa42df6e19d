"""A database against the core: the same random history, compared at each command.

Two processes take turns, each starting from what it saw last, and a foreign program
changes the tables in between. The clock is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from functools import partial
from typing import Any, Protocol, Self
from uuid import uuid4

from aiorwlock_remote._util.driver_loop import DriverLoop, SameLoop
from aiorwlock_remote.cas.server_time import Bounds, ServerTime
from aiorwlock_remote.cas.stepper import map_answers, with_stored_fences
from aiorwlock_remote.cas.table_cas import (
    StatementExecutor,
    TableCas,
    TableStepper,
    with_fence,
)
from aiorwlock_remote.core.commands import (
    Answer,
    Command,
    Granted,
    IllegalCommand,
    Reply,
    Waiting,
)
from aiorwlock_remote.core.doorman import Doorman, MutexRecord
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.redis.random_commands import MS, SECOND, Asker

START = 1_900_000_000 * SECOND
PASSED = (1, 1, 1, 7, MS, 20 * MS, 99 * MS, 150 * MS, 1200 * MS, 5 * SECOND)
KINDS = {
    "ask": 26,
    "enter": 10,
    "release": 20,
    "withdraw": 6,
    "renew": 7,
    "downgrade": 5,
    "upgrade": 9,
    "adopt": 5,
    "force": 3,
    "echo": 5,
}
FOREIGN = {"steal": 2, "vanish": 1, "flush": 1, "nothing": 96}


class ClosableExecutor(StatementExecutor, Protocol):
    """A statement executor and its connections."""

    async def close(self) -> None: ...


class Database(Protocol):
    """Our executors, and a foreign program's statements on both tables."""

    def executor(self, side: DriverLoop) -> ClosableExecutor: ...

    async def delete(self, table: str, kind: str, number: int) -> None: ...

    async def sit(self, kind: str, number: int, ticket: str) -> None:
        """Since 2001-09-09 01:46:40.000500, UTC."""


class Clockwork(ServerTime):
    """The test's own clock."""

    def __init__(self) -> None:
        super().__init__(START, 0)
        self.now: int = START

    def bounds(self, at: int) -> Bounds:  # noqa: ARG002 - the time stands still
        return Bounds(self.now, 0)

    def update(self, now: int, at: int, took: int) -> None:
        """It has its own."""


class Comparison:
    """One history; ``async with`` it."""

    def __init__(self, database: Database, seed: int, *, forgets: bool = False) -> None:
        """``forgets``: the control, whose expectations are wrong now and then."""
        self.seen: Counter[str] = Counter()
        self.asker = Asker(seed, quiet=seed % 3 == 0)
        self._database = database
        self._forgets = forgets
        self._time = Clockwork()
        self._resource: Resource = resource("story", seed, f"{uuid4().hex}:")
        self._record: Doorman | None = None
        self._seat: MutexRecord | None = None
        self._woken: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        self._executors: list[ClosableExecutor] = []
        self._processes = [self._process() for _ in range(2)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for executor in self._executors:
            await executor.close()

    def _process(self) -> tuple[TableCas, TableStepper]:
        clock = SystemClock()
        host = AsyncioEventLoop(clock)
        executor = self._database.executor(SameLoop(host))
        self._executors.append(executor)
        cas = TableCas(executor, clock, self._time)
        loop = asyncio.get_running_loop()

        def later(seconds: float, function: Any) -> None:  # noqa: ANN401
            loop.call_later(seconds, function)

        return cas, TableStepper(cas, self._wakes, later)

    def _wakes(self, _: Resource, client_ids: tuple[str, ...]) -> None:
        self._woken = client_ids

    async def run(self, commands: int) -> None:
        """So many commands, each compared in all it says and does."""
        asker, chance = self.asker, self.asker.chance
        done = 0
        while done < commands:
            asker.record, asker.seat = self._record, self._seat
            kind = chance.choices([*KINDS], [*KINDS.values()])[0]
            command = getattr(asker, kind)()
            if command is None:
                continue
            if chance.random() < 0.8:
                asker.sent.append(command)
            self._tick()
            await self._meddle()
            await self._compare(command)
            done += 1

    def _tick(self) -> None:
        doorman, chance = self._record or Doorman(), self.asker.chance
        ends = [g.expires for g in doorman.grants if g.expires]
        ends += [p.claim_until for p in doorman.queue if p.claim_until]
        ends += [p.expires for p in doorman.queue]
        then = sorted(at for at in ends if at >= self._time.now)
        if then and chance.random() < 0.25:
            at = chance.choice(then[:3]) + chance.choice([-1, 0, 0, 1])
            self._time.now = max(self._time.now + 1, at)
        else:
            self._time.now += chance.choice(PASSED)

    async def _meddle(self) -> None:
        chance = self.asker.chance
        kind = chance.choices([*FOREIGN], [*FOREIGN.values()])[0]
        if kind == "nothing":
            return
        key = self._resource.row
        table = "doormans" if kind == "flush" else "mutex_locks"
        await self._database.delete(table, *key)
        if kind == "flush":
            self._record = None
        else:
            self._seat = None
        if kind == "steal":
            ticket = chance.choice(["thief", "readers", "a,b", "t1"])
            await self._database.sit(*key, ticket)
            self._seat = MutexRecord(f"{ticket},1000000000.000500")

    async def _compare(self, command: Command) -> None:
        expected: Reply | None = None
        now, before = self._time.now, (self._record, self._seat)
        last = 0 if self._record is None else self._record.last
        wakes: tuple[str, ...] = ()
        step = None
        with contextlib.suppress(IllegalCommand):
            step = transition(self._record, self._seat, command, now, 0, now)
        if step is not None:
            expected, wakes = step.reply, step.wakes
            if step.record != (self._record or Doorman()):
                self._record = step.record
            self._seat = step.seat and MutexRecord(step.seat.value)
        if self._forgets and self.asker.chance.random() < 0.001:
            self._record = Doorman()
        self._woken = ()
        cas, steps = self.asker.chance.choice(self._processes)
        clock = time.time_ns() // 1000
        got: Reply | None = None
        with contextlib.suppress(IllegalCommand):
            got = await steps.step(self._resource, command)
        state = await cas.load(self._resource)
        record = state.record or Doorman()
        history = f"{command}\nbefore {before}\nat {now}"
        if step is not None and self._record is step.record and step.record.last > last:
            assert record.last >= max(clock, last + 1), f"{record}: {history}"
            self._record = with_fence(step.record, record.last)  # the server chose it
            expected = with_stored_fences(step.reply, self._record)
        if got is not None:
            got = map_answers(got, partial(self._without_clock, clock, now))
        assert got == expected, f"{got}, {expected}: {history}"
        assert record == (self._record or Doorman()), f"{record}: {history}"
        assert state.seat == self._seat, f"{state.seat}: {history}"
        assert self._woken == wakes, f"{self._woken}, {wakes}: {history}"
        self.seen[f"{type(command).__name__} {type(got).__name__}"] += 1

    def _without_clock(self, clock: int, now: int, answer: Answer) -> Answer:
        """Return the answer as the core gives it: without what the server's clock
        showed, which must not be before the request. ``clock`` is then; ``now``: the
        time of the step, which is the test's.
        """
        # The test's time is ahead of the server's clock, so either may be returned.
        if isinstance(answer, Waiting):
            assert answer.now >= max(clock, now)
            return replace(answer, now=now)
        if isinstance(answer, Granted):
            assert answer.latest >= max(clock, now)
            return replace(answer, latest=0)
        return answer


async def compare(database: Database, commands: int, seed: int) -> Counter[str]:
    """One history, and how often what came up in it."""
    async with Comparison(database, seed) as comparison:
        await comparison.run(commands)
    return comparison.seen
