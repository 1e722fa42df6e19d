"""``rwlock bench``: measure what locks cost at one store, from this host."""

from __future__ import annotations

import json
import math
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from aiorwlock_remote import connect
from aiorwlock_remote.cli import exit_codes
from aiorwlock_remote.cli.bench_peer import hand_over_times, take_turns
from aiorwlock_remote.cli.format import print_json, table
from aiorwlock_remote.cli.options import (
    FloatRange,
    as_json,
    loop_option,
    number_option,
    store_option,
    store_url,
)
from aiorwlock_remote.cli.report import print_message
from aiorwlock_remote.cli.signals import Interrupt
from aiorwlock_remote.cli.worker_process import WorkerProcess, end_workers, within
from aiorwlock_remote.core.url import parse
from aiorwlock_remote.testing.checker import quantile

if TYPE_CHECKING:
    from aiorwlock_remote import Locks, Mutex, ReaderLock


FIGURE_KEYS = """\b
Keys of the JSON (times are seconds):
  store, loop, tasks, seconds   what was measured, and for how long in all
  figures     list of: name, meaning, count, median, p90, per_second, ratio
                ratio       the median in plain requests
                per_second  null where turns have a fixed length
                median, p90, ratio   null if count is 0
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Durations of one repeated operation, in seconds; ``meaning``: text for users.

    ``times``: of each repetition; ``took``: of all together, from which a rate follows,
    or None if each repetition was made to last a given time.
    """

    name: str
    meaning: str
    times: Sequence[float]
    took: float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """Times of one operation, in seconds; ``ratio``: median / median plain request."""

    name: str
    meaning: str
    count: int
    median: float | None
    p90: float | None
    per_second: float | None
    ratio: float | None


def figures(measured: Sequence[Measurement]) -> list[Figure]:
    """Return a summary of each measurement; the first must be of the plain request."""
    floor = quantile(measured[0].times, 0.5)
    found: list[Figure] = []
    for one in measured:
        count = len(one.times)
        median, p90 = (quantile(one.times, q) if count else None for q in (0.5, 0.9))
        rate = count / one.took if one.took else None
        ratio = median / floor if median is not None and floor else None
        found.append(Figure(one.name, one.meaning, count, median, p90, rate, ratio))
    return found


HEAD = ("MEDIAN ms", "90 % ms", "PER SECOND", "× REQUEST", "COUNT", "WHAT")  # noqa: RUF001


def rows(found: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Return a header row and one row of text for each figure; numbers align right."""
    cells = [
        HEAD,
        *(
            (
                _number(one.median, 1e3),
                _number(one.p90, 1e3),
                _number(one.per_second),
                _number(one.ratio),
                str(one.count),
                one.meaning,
            )
            for one in found
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        (*(c.rjust(w) for c, w in zip(row[:-1], widths, strict=False)), row[-1])
        for row in cells
    ]


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return "-"
    scaled = value * unit
    # Three digits, or two behind the point: another run does not repeat more of them.
    magnitude = max(0, math.floor(math.log10(scaled))) if scaled > 0 else 0
    return f"{scaled:.{max(0, 2 - magnitude)}f}"


TYPE = "rwlock-bench"
PARTNER = "the other process"
MODULE = "aiorwlock_remote.cli.bench_peer"
PARTS = 6
LEASE = 10.0
START_TIMEOUT, ANSWER_TIMEOUT = 30.0, 30.0
"""Seconds that the second process may take to start, to answer after its turns, and to
end when the bench is interrupted.
"""
MIN_HOLD, REQUESTS_A_HOLD = 0.005, 2
"""Each turn of two processes lasts at least so many seconds, and so many plain
requests, so that the other process waits by the end of the turn.
"""

Act = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of ``rwlock bench``; ``seconds``: duration of all parts together."""

    url: str
    tasks: int
    seconds: float
    loop: str

    @property
    def part(self) -> float:
        return self.seconds / PARTS


class Benchmark:
    """Runs all measurements of ``rwlock bench``, one of them with a second process.

    ``killed``: True if the second process did not end in time and was killed.
    """

    def __init__(self, settings: Settings, locks: Locks, folder: Path) -> None:
        self.killed: bool = False
        self._settings = settings
        self._locks = locks
        self._folder = folder
        self._run = secrets.token_hex(8)

    async def run(self) -> list[Measurement]:
        # What a store does once, as connecting, is done before anything is timed.
        await _cycle(self._mutex("alone"))
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

    async def _request(self) -> Measurement:
        text = "ask whether a lock is held"
        return await self._repeat("request", text, self._mutex("free").locked)

    async def _alone(self) -> Measurement:
        text = "take and give back a mutex, one task"
        return await self._repeat("alone", text, partial(_cycle, self._mutex("alone")))

    async def _apart(self) -> Measurement:
        count = self._settings.tasks
        locks = [self._mutex(f"apart-{number}") for number in range(count)]
        text = f"the same, {count} tasks, each its own mutex"
        return await self._repeat(
            "apart", text, *(partial(_cycle, one) for one in locks)
        )

    async def _turns(self) -> Measurement:
        # A single task could hand over to no other (test_alone_nobody_hands_over).
        count = max(2, self._settings.tasks)
        lock = self._mutex("turns")
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
        return Measurement("turns", text, times, repeated.took)

    async def _processes(self, request: float) -> Measurement:
        settings, name = self._settings, self._name("processes")
        url, loop = settings.url, settings.loop
        plan = {"url": url, "loop": loop, "resource": name, "lease": LEASE}
        hold = max(MIN_HOLD, request * REQUESTS_A_HOLD)
        order = {"hold": hold, "seconds": settings.part}
        errors = self._folder / "partner.err"
        with within(START_TIMEOUT, PARTNER, "start"):
            line = json.dumps(plan)
            peer = await WorkerProcess.start(PARTNER, MODULE, line, errors)
        try:
            with within(START_TIMEOUT, PARTNER, "start"):
                await peer.wait_ready()
            await peer.send(json.dumps(order).encode() + b"\n")
            ours = await take_turns(self._mutex("processes"), **order)
            with within(ANSWER_TIMEOUT, PARTNER, "answer"):
                theirs = json.loads(await peer.receive())
        finally:
            self.killed = bool(await end_workers([peer]))
        times = hand_over_times(ours, [(entered, left) for entered, left in theirs])
        return Measurement("processes", "hand over a mutex, 2 processes", times, None)

    async def _readers(self) -> Measurement:
        count = self._settings.tasks
        read = partial(_cycle, self._locks.rwlock(*self._name("readers")).reader)
        text = f"enter and leave as a reader, {count} tasks, one lock"
        return await self._repeat("readers", text, *[read] * count)

    def _mutex(self, name: str) -> Mutex:
        return self._locks.mutex(*self._name(name))

    def _name(self, name: str) -> tuple[str, str]:
        return TYPE, f"{self._run}-{name}"

    async def _repeat(self, name: str, text: str, *acts: Act) -> Measurement:
        times, took = await repeat(acts, self._settings.part)
        return Measurement(name, text, times, took)


async def _cycle(lock: Mutex | ReaderLock) -> None:
    async with lock:
        pass


async def repeat(acts: Sequence[Act], seconds: float) -> tuple[list[float], float]:
    """Call the functions for ``seconds``: each in a task of its own, again and again.

    Return the duration of every call, and the duration of the whole run, in seconds.
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


MAX_TASKS = 1000


@click.command(short_help="Measure what locks cost here.", epilog=FIGURE_KEYS)
@store_option
@as_json
@number_option(
    "--seconds", "Duration of all parts together.", 5.0, kind=FloatRange(1, 3600)
)
@number_option(
    "--tasks",
    "How many tasks work side by side.",
    10,
    metavar="N",
    kind=click.IntRange(1, MAX_TASKS),
)
@loop_option
def bench(*, url: str | None, as_json: bool, **options: Any) -> int:  # noqa: ANN401
    """Measure what locks cost at this store, from this host, now.

    A plain request is the floor for this store and this link. The column before COUNT
    has the median of each line in plain requests, which means something on a busy
    machine as well.

    The locks have new names of the type `rwlock-bench`. All of them are released, also
    when the bench is interrupted; the store forgets unused names as it always does.
    """
    settings = Settings(url=store_url(url, must_exist=True), **options)
    interrupt = Interrupt()
    measured = anyio.run(_bench, settings, interrupt, backend=settings.loop)
    if interrupt.by is not None:
        return exit_codes.SIGNAL + interrupt.by
    _show(settings, measured, as_json=as_json)
    return 0


async def _bench(settings: Settings, interrupt: Interrupt) -> list[Measurement]:
    measured: list[Measurement] = []
    left = "nothing is left behind"
    async with interrupt.ends_block():
        with tempfile.TemporaryDirectory(prefix="rwlock-bench-") as folder:
            async with connect(settings.url, lease=LEASE) as locks:
                benchmark = Benchmark(settings, locks, Path(folder))
                try:
                    measured = await benchmark.run()
                finally:
                    if benchmark.killed:
                        left = f"what the other process had ends in {LEASE:g} s"
    if interrupt.by is not None:
        print_message(f"{interrupt.by.name}: {left}")
    return measured


def _show(settings: Settings, measured: list[Measurement], *, as_json: bool) -> None:
    found = figures(measured)
    if not as_json:
        head, *lines = rows(found)
        table(head, lines)
        return
    about = {"store": str(parse(settings.url)), "loop": settings.loop}
    size = {"tasks": settings.tasks, "seconds": settings.seconds}
    print_json(about | size | {"figures": [asdict(figure) for figure in found]})
